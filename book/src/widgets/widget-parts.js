"use strict";

// What the live widgets share: elements, sliders, tables, and a drawing that fits its place.
// `var`, because the page for printing loads this file once for each widget.
var widgetParts = (() => {
    const QUIET = 500; // milliseconds without a change, then the summary is read aloud

    /** An element with attributes and children; texts are texts and never markup. */
    function element(tag, attributes, ...children) {
        const made = document.createElement(tag);
        for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
        made.append(...children);
        return made;
    }

    /**
     * A slider with its label and its value.
     *
     * range: its attributes min, max and step.
     * value: its first position.
     * show: the text of a position.
     * moved: called with every new position.
     */
    function slider(id, label, range, value, show, moved) {
        const output = element("output", { for: id });
        const input = element("input", { ...range, type: "range", id, value });
        const say = () => {
            const text = show(Number(input.value));
            output.textContent = text;
            input.setAttribute("aria-valuetext", text);
        };
        input.addEventListener("input", () => {
            say();
            moved(Number(input.value));
        });
        // mdBook turns pages by the arrow keys, which move a slider too.
        input.addEventListener("keydown", (event) => event.stopPropagation());
        say();
        return element("p", {}, element("label", { for: id }, label), output, input);
    }

    /** A choice between names, with its label; `chosen` is called with every new one. */
    function select(id, label, names, first, chosen) {
        const options = names.map((name) => element("option", name === first ? { selected: "" } : {}, name));
        const input = element("select", { id }, ...options);
        input.addEventListener("change", () => chosen(input.value));
        input.addEventListener("keydown", (event) => event.stopPropagation()); // arrow keys turn mdBook's pages
        return element("p", {}, element("label", { for: id }, label), input);
    }

    /** The sliders of a widget, above its picture. */
    function controls(...children) {
        return element("div", { class: "controls", role: "group", "aria-label": "What is drawn" }, ...children);
    }

    /** A table of texts: the heads of its columns, and rows that begin with their own head. */
    function table(columns, rows) {
        const heads = columns.map((name) => element("th", { scope: "col" }, name));
        const lines = rows.map(([label, ...values]) => {
            const texts = values.map((value) => element("td", {}, value));
            return element("tr", {}, element("th", { scope: "row" }, label), ...texts);
        });
        const header = element("thead", {}, element("tr", {}, ...heads));
        return element("table", {}, header, element("tbody", {}, ...lines));
    }

    /** Calls `draw` with the width of a place, now and whenever it changes; returns what draws once more. */
    function fitted(place, draw) {
        let width = 0;
        function fit() {
            const room = Math.round(Math.min(Math.max(place.clientWidth, 300), 760));
            if (room === width) return;
            width = room;
            draw(width);
        }
        fit();
        if (window.ResizeObserver) new ResizeObserver(fit).observe(place);
        return () => draw(width);
    }

    /** A line, and what sets its text: seen at once, and read aloud when nothing has changed for a while. */
    function status() {
        const seen = element("p", { class: "said", "aria-hidden": "true" });
        const aloud = element("p", { class: "unseen", role: "status", "aria-live": "polite" });
        let quiet = 0;
        const set = (text) => {
            seen.textContent = text;
            clearTimeout(quiet);
            quiet = setTimeout(() => (aloud.textContent = text), aloud.textContent ? QUIET : 0);
        };
        return { said: element("div", {}, seen, aloud), set };
    }

    return { element, slider, select, controls, table, fitted, status };
})();
