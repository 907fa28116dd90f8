"use strict";

// What the widgets' pictures share: texts, boxes and an axis of time, as parts of an SVG.
// `var`, because the page for printing loads this file once for each widget.
var svgParts = (() => {
    /** "85 ms", "1.25 s": three digits are enough. */
    function time(seconds) {
        if (seconds < 0.0095) return `${(1000 * seconds).toFixed(1)} ms`;
        return seconds < 0.9995 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(2)} s`;
    }

    const round = (x) => Math.round(10 * x) / 10;

    function text(kind, x, y, content) {
        return `<text class="${kind}" x="${round(x)}" y="${round(y)}">${content}</text>`;
    }

    function box(kind, x, y, width, height) {
        const size = `width="${round(Math.max(width, 0.5))}" height="${round(height)}"`;
        return `<rect class="${kind}" x="${round(x)}" y="${round(y)}" ${size}/>`;
    }

    /** 1, 2 or 5 times a power of ten: at most `most` of them fit into the total. */
    function tick(total, most) {
        const power = 10 ** Math.floor(Math.log10(total / most));
        return [1, 2, 5, 10].map((factor) => factor * power).find((step) => total / step <= most);
    }

    /** Vertical lines through a picture and their labels below it; `x` places a second, `room` is the axis's width. */
    function axis(total, x, top, bottom, room) {
        const step = tick(total, Math.max(2, Math.floor(room / 60)));
        const marks = Array.from({ length: Math.floor(total / step) + 1 }, (_, k) => k * step);
        const lines = marks.map((mark) => `M${round(x(mark))} ${top}V${bottom}`).join("");
        const digits = Math.max(0, -Math.floor(Math.log10(step)));
        const labels = marks.map((mark) => text("label small", x(mark), bottom + 12, `${mark.toFixed(digits)} s`));
        return { grid: `<path class="grid" d="${lines}"/>`, labels: labels.join("") };
    }

    return { time, round, text, box, axis };
})();
