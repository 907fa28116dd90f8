"use strict";

// Schedules, one above the other, on one axis of time: as the text of an SVG picture. No page and no network, so that the
// picture for readers without JavaScript comes from the same lines.
// `var`, because the page for printing loads this file once for each widget.
var chunkedPrefillDrawing = (() => {
    const { time, round, text, box, axis } = svgParts;
    const LEFT = 70; // room for the names of the lanes
    const RIGHT = 10;
    const PROMPTS = ["prompt", "“hello”"];
    const LANE = { prompt: 22, answer: 13, title: 26, gap: 26, axis: 40 };

    /** The longest gap of all requests: where it begins and ends. */
    function longest({ answers, prompts }) {
        const all = [...answers, ...prompts].flatMap(({ times }) => times.slice(1).map((end, i) => ({ start: times[i], end })));
        const length = ({ start, end }) => end - start;
        return all.reduce((best, gap) => (best && length(best) >= length(gap) ? best : gap), null);
    }

    /** A dashed line until its turn, one box for each chunk, then the tokens of the prompt's own answer. */
    function promptLane(run, number, x, y) {
        const prompt = run.prompts[number];
        const chunks = run.spans.filter((span) => span.prompt === number);
        const height = LANE.prompt - 4;
        const middle = y + height / 2;
        const waits = x(chunks[0].start) - x(prompt.arrives) > 1;
        const queued = `M${round(x(prompt.arrives))} ${middle}H${round(x(chunks[0].start))}`;
        const boxes = chunks.map((span) => box("box-b fine", x(span.start), y, x(span.end) - x(span.start), height));
        return (
            (waits ? `<path class="dash" d="${queued}"/>` : "") +
            boxes.join("") +
            tokens(run, prompt, x, middle - 4.5)
        );
    }

    /** How long the late prompt waits for its first word: before that word if there is room, or after its tokens. */
    function firstWord(run, x, y, width) {
        const late = run.prompts[1];
        const [from, to] = [x(late.arrives), x(late.times[0])];
        const label = `first word after ${time(late.times[0] - late.arrives)}`;
        const end = x(late.times[late.times.length - 1]) + 8;
        if (to - from > 180) return text("label-end small halo", to - 6, y, label);
        if (end + 160 < width) return text("label-start small halo", end, y, label);
        return box("box", width - RIGHT - 160, y - 9, 160, 18) + text("label small", width - RIGHT - 80, y, label);
    }

    /** A box for each decode step of an answer; at its end the token is there. */
    function tokens(run, request, x, y) {
        const ends = new Set(request.times);
        const steps = run.spans.filter((span) => span.kind === "decode" && ends.has(span.end));
        const parts = steps.map(({ start, end }) => {
            const left = round(x(start));
            return `M${left} ${round(y)}H${round(x(end))}v9H${left}z`;
        });
        return parts.length ? `<path class="box-a fine" d="${parts.join("")}"/>` : "";
    }

    /** What the answers wait for beyond the promised tokens: striped, and a line for each if there is room. */
    function stalled(run, promise, x, y, height, stripes) {
        return run.spans
            .map((span) => {
                const count = chunkedPrefillSchedule.stalls(span, promise);
                if (!count) return "";
                const at = (k) => x(span.start + ((span.end - span.start) * k * promise) / span.tokens);
                const apart = (x(span.end) - at(1)) / count > 5;
                const drawn = Array.from({ length: apart ? count : 0 }, (_, k) => at(k + 1));
                const lines = drawn.map((left) => `M${round(left)} ${y}v${height}`);
                const middle = (at(1) + x(span.end)) / 2;
                const label = `${count} stall${count > 1 ? "s" : ""}`;
                const fits = x(span.end) - at(1) > 76;
                return (
                    `<rect class="stall" fill="url(#${stripes})" x="${round(at(1))}" y="${y}" ` +
                    `width="${round(x(span.end) - at(1))}" height="${height}"/>` +
                    `<path class="stall" d="${lines.join("")}"/>` +
                    (fits ? box("box", middle - 36, y + height / 2 - 10, 72, 20) : "") +
                    (fits ? text("label small strong", middle, y + height / 2, label) : "")
                );
            })
            .join("");
    }

    /** The longest gap as a dimension line below the lanes. */
    function gapLine(run, x, y, width) {
        const gap = longest(run);
        if (!gap) return "";
        const label = `longest gap ${time(gap.end - gap.start)}`;
        const middle = Math.min(Math.max((x(gap.start) + x(gap.end)) / 2, LEFT + 64), width - RIGHT - 64);
        return (
            `<path class="line" d="M${round(x(gap.start))} ${y}v8m0 -4H${round(x(gap.end))}m0 -4v8"/>` +
            text("label small halo", middle, y + 15, label)
        );
    }

    function lanes(run, title, promise, x, top, width, stripes) {
        const { answers, prompts } = run;
        const first = top + LANE.title;
        const below = first + prompts.length * LANE.prompt;
        const height = answers.length * LANE.answer;
        const bottom = below + height + 2;
        const name = answers.length > 1 ? `${answers.length} answers` : "answer";
        return {
            bottom: bottom + LANE.gap,
            svg: [
                text("label-start strong small halo", 0, top + 12, title),
                ...prompts.map((_, i) => text("label-start small", 0, first + i * LANE.prompt + 9, PROMPTS[i])),
                answers.length ? text("label-start small", 0, below + height / 2, name) : "",
                ...prompts.map((_, i) => promptLane(run, i, x, first + i * LANE.prompt)),
                prompts.length > 1 ? firstWord(run, x, first + LANE.prompt + 9, width) : "",
                stalled(run, promise, x, below, height, stripes),
                answers.map((request, i) => tokens(run, request, x, below + i * LANE.answer + 2)).join(""),
                gapLine(run, x, bottom, width),
            ].join(""),
        };
    }

    /** What a timeline says above itself. */
    function title(policy, { input, chunked }) {
        if (policy === "whole") return `the prompt whole, ${input.promptTokens} tokens`;
        if (policy === "pausing") return `in chunks of ${input.chunk}, shorter prompts first`;
        const count = chunked.spans.filter((span) => span.prompt === 0).length;
        return count > 1 ? `in ${count} chunks of up to ${input.chunk} tokens` : "in one chunk: it is not longer";
    }

    /**
     * The picture of what `chunkedPrefillSchedule.compare` returns, `width` pixels wide.
     *
     * id: begins the ids inside of the picture, so that two of them fit on one page.
     * policies: the runs that are drawn, from top to bottom; the axis has room for all runs, drawn or not.
     */
    function draw(runs, width, id, policies = ["whole", "chunked"]) {
        const total = Math.max(...["whole", "chunked", "pausing"].map((policy) => runs[policy].metrics.total));
        const x = (seconds) => LEFT + (seconds / total) * (width - LEFT - RIGHT);
        const stripes = `${id}-stripes`;
        let bottom = -8;
        const drawn = policies.map((policy) => {
            const top = bottom + 8;
            const one = lanes(runs[policy], title(policy, runs), runs.input.promise, x, top, width, stripes);
            bottom = one.bottom;
            return one.svg;
        });
        const { grid, labels } = axis(total, x, LANE.title, bottom, width - LEFT);
        const height = bottom + LANE.axis - 16;
        const names = { whole: "computed whole", chunked: "in chunks", pausing: "in chunks that make room" };
        return (
            `<svg viewBox="0 0 ${width} ${height}" role="img" aria-labelledby="${id}-title">` +
            `<title id="${id}-title">` +
            `Timelines of the same requests, prompts ${policies.map((policy) => names[policy]).join(", ")}</title>` +
            `<defs><pattern id="${stripes}" width="8" height="8" patternUnits="userSpaceOnUse">` +
            '<path class="stripe" d="M-2 2L2 -2M0 8L8 0M6 10L10 6"/></pattern></defs>' +
            grid +
            drawn.join("") +
            labels +
            "</svg>"
        );
    }

    return { draw };
})();
