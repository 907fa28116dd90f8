"use strict";

// The timelines of all policies, one above the other on one axis of time, as the text of an SVG picture. Nothing is
// simulated here: the schedulers of the course ran when the book was built, at every position of the sliders, and the
// table has their steps. No page and no network.
// `var`, because the page for printing loads this file once for each widget.
var policiesDrawing = (() => {
    const { round, text, box, axis } = svgParts;
    const LEFT = 104; // room for the names of the policies
    const RIGHT = 10;
    const ROW = { mark: 15, prompts: 13, decodes: 9, gap: 8 };
    const HEIGHT = ROW.mark + ROW.prompts + ROW.decodes + ROW.gap;
    const NARROW = 2.5; // pixels of a step, below which its lines would fill it
    const LONG = 0.2; // seconds at which the long prompt arrives

    /** The run of each policy at a position of the sliders: {policy, steps, figures}. */
    function runsAt({ budgets, targets, loads, runs }, { budget, target, load }) {
        return Object.entries(runs).map(([policy, byLoad]) => {
            const settings = byLoad[loads.indexOf(load)];
            const place = policy === "slack" ? targets.indexOf(target) : settings.length > 1 ? budgets.indexOf(budget) : 0;
            return { policy, ...settings[place] };
        });
    }

    /** The end of the last run at this load, whatever the other sliders say: so the axis stays when they move. */
    function lastEnd({ loads, runs }, { load }) {
        const settings = Object.values(runs).flatMap((byLoad) => byLoad[loads.indexOf(load)]);
        return Math.max(...settings.map(({ figures }) => figures.end)) / 1000;
    }

    /** Every step with the second at which it begins; equal steps too narrow for a box of their own are one. */
    function spans(steps, x) {
        let now = 0;
        return steps.flatMap(([times, ms, decodes, long, short]) => {
            const narrow = x(ms / 1000) - x(0) < NARROW;
            const [boxes, seconds] = narrow ? [1, (times * ms) / 1000] : [times, ms / 1000];
            return Array.from({ length: boxes }, () => {
                const start = now;
                now += seconds;
                return { start, end: now, decodes, long, short };
            });
        });
    }

    /** The prompts of a step above, each as wide as its share of the tokens; its decodes below. */
    function stepBoxes({ start, end, decodes, long, short }, x, y) {
        const [left, width] = [x(start), x(end) - x(start)];
        const split = width * (long / (long + short || 1));
        return (
            (long ? box("box-b fine", left, y, split, ROW.prompts) : "") +
            (short ? box("box-c fine", left + split, y, width - split, ROW.prompts) : "") +
            (decodes ? box("box-a fine", left, y + ROW.prompts, width, ROW.decodes) : "")
        );
    }

    /** A line through a row, and its name above it. */
    function mark(kind, name, at, y) {
        const line = `<path class="${kind}" d="M${round(at)} ${y - 4}V${y + ROW.prompts + ROW.decodes}"/>`;
        return line + text("label small halo strong", at, y - 9, name);
    }

    function row({ policy, steps, figures }, number, x) {
        const y = number * HEIGHT + ROW.mark;
        return (
            text("label-start small", 0, y + ROW.prompts - 1, policy) +
            spans(steps, x).map((span) => stepBoxes(span, x, y)).join("") +
            mark("line", "L", x(LONG + figures.long / 1000), y) +
            (figures.answer ? mark("dash", "s", x(figures.answer / 1000), y) : "")
        );
    }

    /** The picture of all policies at a position of the sliders, `width` pixels wide; `id` begins the ids inside. */
    function draw(table, at, width, id) {
        const runs = runsAt(table, at);
        const total = lastEnd(table, at);
        const x = (seconds) => LEFT + (seconds / total) * (width - LEFT - RIGHT);
        const bottom = runs.length * HEIGHT;
        const { grid, labels } = axis(total, x, 0, bottom, width - LEFT);
        return (
            `<svg viewBox="0 -4 ${width} ${bottom + 28}" role="img" aria-labelledby="${id}-title">` +
            `<title id="${id}-title">Timelines of the same requests under ${runs.length} policies</title>` +
            grid +
            runs.map((run, number) => row(run, number, x)).join("") +
            labels +
            "</svg>"
        );
    }

    return { draw, runsAt };
})();
