"use strict";

// A browser may break a line after any hyphen, also between those of `--policy`. Options and names stay whole.
(() => {
    const OPTION = /(--?[a-z][\w-]*)/;

    function unbroken(text) {
        const span = document.createElement("span");
        span.className = "option";
        span.textContent = text;
        return span;
    }

    for (const code of document.querySelectorAll("main :not(pre) > code")) {
        const parts = code.textContent.split(OPTION);
        if (parts.length === 1 || code.children.length) continue;
        code.replaceChildren(...parts.map((part, index) => (index % 2 ? unbroken(part) : part)));
    }
})();
