"use strict";

// What is wider than the page scrolls by itself, and phones show no scrollbar: while more is on the right, its edge fades
// and a word above says so.
(() => {
    const WIDE = "main pre.screen, main pre > code, main .table-wrapper, main .formula, main figure.diagram";

    function mark(element) {
        const hidden = element.scrollWidth - element.clientWidth;
        element.classList.toggle("wide", hidden > 8);
        element.classList.toggle("more", hidden - element.scrollLeft > 8);
    }

    const blocks = [...document.querySelectorAll(WIDE)];
    for (const block of blocks) block.addEventListener("scroll", () => mark(block), {passive: true});
    const seen = new ResizeObserver((entries) => entries.forEach((entry) => mark(entry.target)));
    blocks.forEach((block) => seen.observe(block));
})();
