"use strict";

// The controls around the drawing. Each `.chunk-widget` of a page gets its own; a page without one is left alone.
// Without JavaScript the picture that is in the page stays. `data-kind` says which of two widgets it is: "chunks"
// compares whole prompts with chunks; "late" has a short prompt that comes later, and a switch between three policies.
(() => {
    const { compare } = chunkedPrefillSchedule;
    const { draw } = chunkedPrefillDrawing;
    const { time } = svgParts;
    const { element, slider, controls, fitted, status, ...parts } = widgetParts;

    const CHUNKS = [16, 32, 64, 128, 256, 512, 1024];
    const SCENE = { promptTokens: 2048, chunk: 128, promise: 128, decodes: 4, answerTokens: 32, context: 256 };
    const LATE = { tokens: 8, arrives: 0.1 };
    const CONTROLS = {
        chunk: { label: "Chunk size", min: 0, max: CHUNKS.length - 1, step: 1 },
        promise: { label: "Promise", min: 0, max: CHUNKS.length - 1, step: 1 },
        promptTokens: { label: "Prompt length", min: 64, max: 3072, step: 64 },
        decodes: { label: "Answers that are running", min: 0, max: 8, step: 1 },
        late: { label: "“hello” comes after", min: 0, max: 1000, step: 20 },
    };
    const FIGURES = {
        chunks: ["chunks", String],
        stallSteps: ["stalls", String],
        longestGap: ["longest gap", time],
        tbtP50: ["time between tokens, p50", time],
        tbtP99: ["time between tokens, p99", time],
        ttft: ["first token of the prompt after", time],
        lateTtft: ["first token of “hello” after", time],
        total: ["everything done after", time],
    };
    const COLUMNS = { whole: "whole", chunked: "in chunks", pausing: "pausing" };
    const KINDS = {
        chunks: {
            scene: SCENE,
            controls: ["chunk", "promise", "promptTokens", "decodes"],
            figures: ["chunks", "stallSteps", "longestGap", "tbtP50", "tbtP99", "ttft", "total"],
            policies: ["whole", "chunked"],
            shown: () => ["whole", "chunked"],
            summary,
        },
        late: {
            scene: { ...SCENE, late: LATE, policy: "chunked" },
            controls: ["late", "chunk", "promptTokens"],
            figures: ["stallSteps", "longestGap", "lateTtft", "ttft", "total"],
            policies: ["whole", "chunked", "pausing"],
            shown: (state) => [state.policy],
            summary: lateSummary,
        },
    };
    const tokens = (count) => `${count} tokens`;
    const sizes = { toInput: (size) => CHUNKS.indexOf(size), fromInput: (place) => CHUNKS[place], show: tokens };
    const VALUES = {
        chunk: sizes,
        promise: sizes,
        promptTokens: { toInput: Number, fromInput: Number, show: tokens },
        decodes: { toInput: Number, fromInput: Number, show: String },
        late: {
            toInput: ({ arrives }) => Math.round(1000 * arrives),
            fromInput: (milliseconds) => ({ ...LATE, arrives: milliseconds / 1000 }),
            show: ({ arrives }) => `${Math.round(1000 * arrives)} ms`,
        },
    };

    function control(kind, name, state, changed) {
        const { label, ...range } = CONTROLS[name];
        const { toInput, fromInput, show } = VALUES[name];
        const text = (position) => show(fromInput(position));
        return slider(`${kind}-widget-${name}`, label, range, toInput(state[name]), text, (position) => {
            state[name] = fromInput(position);
            changed();
        });
    }

    /** The switch between policies: one of them is drawn. */
    function choice(kind, policies, state, changed) {
        const choices = policies.map((policy) => {
            const input = element("input", { type: "radio", name: `${kind}-widget-policy`, value: policy });
            input.checked = policy === state.policy;
            input.addEventListener("keydown", (event) => event.stopPropagation());
            input.addEventListener("change", () => {
                state.policy = policy;
                changed();
            });
            return element("label", {}, input, ` ${COLUMNS[policy]}`);
        });
        return element("fieldset", {}, element("legend", {}, "Prompts are computed"), ...choices);
    }

    const shown = (value, show) => (value === null ? "none" : show(value));

    function table(runs, { figures, policies }) {
        const rows = figures.map((name) => {
            const [label, show] = FIGURES[name];
            return [label, ...policies.map((policy) => shown(runs[policy].metrics[name], show))];
        });
        return parts.table(["", ...policies.map((policy) => COLUMNS[policy])], rows);
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

    /** Both promises, under the policy that is drawn. */
    function lateSummary(runs) {
        const { metrics } = runs[runs.input.policy];
        const gap = `Running answers wait at most ${time(metrics.longestGap)}: ${stalls(metrics)}. `;
        const first = `“hello” has its first word after ${time(metrics.lateTtft)}, `;
        return gap + first + `the long prompt after ${time(metrics.ttft)}.`;
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
        if (place.classList.contains("live")) return; // the page for printing loads this file once for each widget
        const name = place.dataset.kind;
        const kind = KINDS[name];
        const cost = JSON.parse(place.querySelector("script[type='application/json']").textContent);
        const state = { ...kind.scene, cost };
        const picture = place.querySelector("figure > div");
        const figures = element("div", { class: "table-wrapper" });
        const { said, set } = status();

        function update(width) {
            const runs = compare({ ...state });
            picture.innerHTML = draw(runs, width, `${name}-widget-live`, kind.shown(state)); // made of numbers alone
            figures.replaceChildren(table(runs, kind));
            set(kind.summary(runs));
        }

        let redraw = () => {};
        const inputs = kind.controls.map((each) => control(name, each, state, () => redraw()));
        if (state.policy) inputs.unshift(choice(name, kind.policies, state, () => redraw()));
        place.prepend(controls(...inputs));
        const command = element("code", {}, "pdm run book measure");
        place.append(said, figures, element("p", { class: "measured-on" }, measured(cost), command));
        place.classList.add("live");
        redraw = fitted(place, update);
    }

    document.querySelectorAll(".chunk-widget[data-kind]").forEach(start);
})();
