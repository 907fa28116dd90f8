"use strict";

// Hints and answers cannot be unfolded on paper: they are open on the page that is made for printing, and while any
// page is printed.
(() => {
    let opened = [];
    function unfold() {
        opened = [...document.querySelectorAll("details:not([open])")];
        for (const each of opened) each.open = true;
    }
    function fold() {
        for (const each of opened) each.open = false;
        opened = [];
    }
    if (location.pathname.endsWith("/print.html")) {
        unfold();
        return;
    }
    addEventListener("beforeprint", unfold);
    addEventListener("afterprint", fold);
})();
