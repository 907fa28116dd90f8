"use strict";

// The controls around the drawing. Each `.chunk-widget` of a page gets its own; a page without one is left alone.
// Without JavaScript the picture that is in the page stays.
(() => {
    const { compare } = chunkedPrefillSchedule;
    const { draw, time } = chunkedPrefillDrawing;

    const CHUNKS = [16, 32, 64, 128, 256, 512, 1024];
    const CONTROLS = [
        { name: "chunk", label: "Chunk size", min: 0, max: CHUNKS.length - 1, step: 1 },
        { name: "promise", label: "Promise", min: 0, max: CHUNKS.length - 1, step: 1 },
        { name: "promptTokens", label: "Prompt length", min: 64, max: 3072, step: 64 },
        { name: "decodes", label: "Answers that are running", min: 0, max: 8, step: 1 },
    ];
    const FIGURES = [
        ["chunks", "chunks", String],
        ["stallSteps", "stalls", String],
        ["longestGap", "longest gap", time],
        ["tbtP50", "time between tokens, p50", time],
        ["tbtP99", "time between tokens, p99", time],
        ["ttft", "first token of the prompt after", time],
        ["total", "everything done after", time],
    ];
    const QUIET = 500; // milliseconds without a change, then the summary is read aloud

    /** An element with attributes and children; texts are texts and never markup. */
    function element(tag, attributes, ...children) {
        const made = document.createElement(tag);
        for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
        made.append(...children);
        return made;
    }

    const tokens = (count) => `${count} tokens`;
    const sizes = { toInput: (size) => CHUNKS.indexOf(size), fromInput: (place) => CHUNKS[place], show: tokens };
    const VALUES = {
        chunk: sizes,
        promise: sizes,
        promptTokens: { toInput: Number, fromInput: Number, show: tokens },
        decodes: { toInput: Number, fromInput: Number, show: String },
    };

    function control({ name, label, ...range }, state, changed) {
        const id = `chunk-widget-${name}`;
        const { toInput, fromInput, show } = VALUES[name];
        const output = element("output", { for: id }, show(state[name]));
        const input = element("input", { ...range, type: "range", id, value: toInput(state[name]) });
        const say = () => input.setAttribute("aria-valuetext", show(state[name]));
        input.addEventListener("input", () => {
            state[name] = fromInput(Number(input.value));
            output.textContent = show(state[name]);
            say();
            changed();
        });
        // mdBook turns pages by the arrow keys, which move a slider too.
        input.addEventListener("keydown", (event) => event.stopPropagation());
        say();
        return element("p", {}, element("label", { for: id }, label), output, input);
    }

    const shown = (value, show) => (value === null ? "none" : show(value));

    function table(pair) {
        const cells = FIGURES.map(([name, label, show]) => [
            label,
            ...[pair.whole, pair.chunked].map(({ metrics }) => shown(metrics[name], show)),
        ]);
        const head = ["", "whole", "in chunks"].map((name) => element("th", { scope: "col" }, name));
        const rows = cells.map(([label, ...values]) => {
            const texts = values.map((value) => element("td", {}, value));
            return element("tr", {}, element("th", { scope: "row" }, label), ...texts);
        });
        const header = element("thead", {}, element("tr", {}, ...head));
        return element("table", {}, header, element("tbody", {}, ...rows));
    }

    /** "+29 %". */
    function percent(now, before) {
        const share = Math.round((100 * (now - before)) / before);
        return `${share < 0 ? "−" : "+"}${Math.abs(share)} %`;
    }


    const stalls = ({ stallSteps }) => `${stallSteps} stall${stallSteps === 1 ? "" : "s"}`;

    /** What is won and what is lost, in two sentences. */
    function summary({ input, whole, chunked }) {
        const [before, now] = [whole.metrics, chunked.metrics];
        const price =
            "The price: the first token of the prompt comes " +
            `after ${time(now.ttft)} and not ${time(before.ttft)}, ` +
            `and everything is done after ${time(now.total)} and not ${time(before.total)} ` +
            `(${percent(now.total, before.total)}).`;
        if (now.chunks === 1) return "The prompt is no longer than one chunk: both are the same.";
        if (input.decodes === 0) return `Nobody waits, so chunks win nothing. ${price}`;
        return (
            `Whole, the prompt makes the answers wait ${time(before.longestGap)}: ${stalls(before)}. ` +
            `In chunks they wait ${time(now.longestGap)} at most: ${stalls(now)}. ${price}`
        );
    }

    /** "12 ms + 0.14 ms · tokens + 0.16 µs · tokens · context". */
    function line({ a, b, c }, what) {
        const figure = (seconds) => Number(seconds.toPrecision(2));
        return `${figure(1e3 * a)} ms + ${figure(1e3 * b)} ms · ${what} + ${figure(1e6 * c)} µs · ${what} · context`;
    }

    function measured(cost) {
        const { processor, system } = cost.provenance.machine;
        const version = cost.provenance.versions[cost.backend];
        const error = Math.round(100 * Math.max(cost.prefill.error, cost.decode.error));
        return (
            `The times are arithmetic. A chunk takes ${line(cost.prefill, "tokens")}; ` +
            `a decode step takes ${line(cost.decode, "rows")}. ` +
            "The context is how many tokens each one sees, on average. " +
            `These lines go through measurements of ${cost.provenance.date.slice(0, 10)}, ` +
            `and miss them by ${error} % at most: ` +
            `the shipped model in ${cost.backend} ${version}, ${system}, ${processor}, ${cost.clock} of one thread. ` +
            "Your machine has others; this command measures them and puts them here: "
        );
    }

    function start(place) {
        const cost = JSON.parse(place.querySelector("script[type='application/json']").textContent);
        const state = { promptTokens: 2048, chunk: 128, promise: 128, decodes: 4, answerTokens: 32, context: 256, cost };
        const picture = place.querySelector("figure > div");
        const figures = element("div", { class: "table-wrapper" });
        const said = element("p", { role: "status", "aria-live": "polite" });
        let width = 0;
        let quiet = 0;

        function update() {
            const pair = compare(state);
            picture.innerHTML = draw(pair, width, "chunk-widget-live"); // made of numbers alone
            figures.replaceChildren(table(pair));
            clearTimeout(quiet);
            quiet = setTimeout(() => (said.textContent = summary(pair)), said.textContent ? QUIET : 0);
        }
        function fit() {
            const room = Math.round(Math.min(Math.max(place.clientWidth, 300), 760));
            if (room === width) return;
            width = room;
            update();
        }

        const controls = CONTROLS.map((each) => control(each, state, update));
        place.prepend(element("div", { class: "controls", role: "group", "aria-label": "What is drawn" }, ...controls));
        const command = element("code", {}, "pdm run book measure");
        place.append(said, figures, element("p", { class: "measured-on" }, measured(cost), command));
        place.classList.add("live");
        fit();
        if (window.ResizeObserver) new ResizeObserver(fit).observe(place);
    }

    document.querySelectorAll(".chunk-widget").forEach(start);
})();
