"use strict";

// The sliders and the figures around the timelines of Day 3.5. Without JavaScript the picture that is in the page stays.
(() => {
    const { draw, runsAt } = policiesDrawing;
    const { time } = svgParts;
    const { element, slider, controls, table, fitted, status } = widgetParts;

    const SLIDERS = [
        { name: "budget", values: "budgets", label: "Budget of a step", show: (n) => `${n} tokens` },
        { name: "target", values: "targets", label: "Target of slack", show: (n) => `${n} ms` },
        { name: "load", values: "loads", label: "Load", show: (n) => `${n} short prompts/s` },
    ];
    const COLUMNS = ["", "longest pause of A", "first token of L", "of a short prompt", "first short answer", "all done"];
    const FIGURES = ["gap", "long", "short", "answer", "end"];
    const ms = (value) => (value === null ? "none" : time(value / 1000));

    function figures(runs) {
        return table(
            COLUMNS,
            runs.map(({ policy, figures }) => [policy, ...FIGURES.map((name) => ms(figures[name]))]),
        );
    }

    /** The best and the worst policy by one figure, in words. */
    function extremes(runs, name) {
        const sorted = [...runs].sort((one, other) => one.figures[name] - other.figures[name]);
        const worst = sorted[sorted.length - 1];
        return [sorted[0], worst].map(({ policy, figures }) => `${policy} ${ms(figures[name])}`);
    }

    function summary(runs) {
        const [calm, stalled] = extremes(runs, "gap");
        const [soon, late] = extremes(runs, "long");
        return `Longest pause of A: ${calm} to ${stalled}. First token of L: ${soon} to ${late}.`;
    }

    function start(place) {
        if (place.classList.contains("live")) return; // the page for printing loads this file once for each widget
        const data = JSON.parse(place.querySelector("script[type='application/json']").textContent);
        const state = { ...data.start };
        const picture = place.querySelector("figure > div");
        const below = element("div", { class: "table-wrapper" });
        const { said, set } = status();

        function update(width) {
            const runs = runsAt(data, state);
            picture.innerHTML = draw(data, state, width, "policies-widget-live"); // made of numbers and policies' names
            below.replaceChildren(figures(runs));
            set(summary(runs));
        }

        let redraw = () => {};
        const inputs = SLIDERS.map(({ name, values, label, show }) => {
            const options = data[values];
            const range = { min: 0, max: options.length - 1, step: 1 };
            const text = (position) => show(options[position]);
            return slider(`policies-widget-${name}`, label, range, options.indexOf(state[name]), text, (position) => {
                state[name] = options[position];
                redraw();
            });
        });
        place.prepend(controls(...inputs));
        place.append(said, below);
        place.classList.add("live");
        redraw = fitted(place, update);
    }

    document.querySelectorAll(".policies-widget").forEach(start);
})();
