"use strict";

// Two schedules, one above the other, on one axis of time: as the text of an SVG picture. No page and no network,
// so that the picture for readers without JavaScript comes from the same lines.
const chunkedPrefillDrawing = (() => {
    const LEFT = 70; // room for the names of the lanes
    const RIGHT = 10;
    const LANE = { prompt: 22, answer: 13, title: 26, gap: 26, axis: 40 };

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

    /** The longest gap of all answers: where it begins and ends. */
    function longest(requests) {
        const all = requests.flatMap(({ times }) => times.slice(1).map((end, i) => ({ start: times[i], end })));
        const length = ({ start, end }) => end - start;
        return all.reduce((best, gap) => (best && length(best) >= length(gap) ? best : gap), null);
    }

    /** One box for each chunk, then the tokens of the prompt's own answer. */
    function promptLane(run, x, y) {
        const chunks = run.spans.filter((span) => span.kind === "chunk");
        const height = LANE.prompt - 4;
        const boxes = chunks.map((span) => box("box-b fine", x(span.start), y, x(span.end) - x(span.start), height));
        return boxes.join("") + tokens(run, run.requests[run.requests.length - 1], x, y + (height - 9) / 2);
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
        const gap = longest(run.requests);
        if (!gap) return "";
        const label = `longest gap ${time(gap.end - gap.start)}`;
        const middle = Math.min(Math.max((x(gap.start) + x(gap.end)) / 2, LEFT + 64), width - RIGHT - 64);
        return (
            `<path class="line" d="M${round(x(gap.start))} ${y}v8m0 -4H${round(x(gap.end))}m0 -4v8"/>` +
            text("label small halo", middle, y + 15, label)
        );
    }

    function lanes(run, title, promise, x, top, width, stripes) {
        const answers = run.requests.slice(0, -1);
        const first = top + LANE.title;
        const below = first + LANE.prompt;
        const height = answers.length * LANE.answer;
        const bottom = below + height + 2;
        const name = answers.length > 1 ? `${answers.length} answers` : "answer";
        return {
            bottom: bottom + LANE.gap,
            svg: [
                text("label-start strong small halo", 0, top + 12, title),
                text("label-start small", 0, first + 9, "prompt"),
                answers.length ? text("label-start small", 0, below + height / 2, name) : "",
                promptLane(run, x, first),
                stalled(run, promise, x, below, height, stripes),
                answers.map((request, i) => tokens(run, request, x, below + i * LANE.answer + 2)).join(""),
                gapLine(run, x, bottom, width),
            ].join(""),
        };
    }

    function axis(total, x, top, bottom, width) {
        const step = tick(total, Math.max(2, Math.floor((width - LEFT) / 60)));
        const marks = Array.from({ length: Math.floor(total / step) + 1 }, (_, k) => k * step);
        const lines = marks.map((mark) => `M${round(x(mark))} ${top}V${bottom}`).join("");
        const digits = Math.max(0, -Math.floor(Math.log10(step)));
        const labels = marks.map((mark) => text("label small", x(mark), bottom + 12, `${mark.toFixed(digits)} s`));
        return { grid: `<path class="grid" d="${lines}"/>`, labels: labels.join("") };
    }

    /**
     * The picture of what `chunkedPrefillSchedule.compare` returns, `width` pixels wide.
     *
     * id: begins the ids inside of the picture, so that two of them fit on one page.
     */
    function draw({ input, whole, chunked }, width, id) {
        const total = Math.max(whole.metrics.total, chunked.metrics.total);
        const x = (seconds) => LEFT + (seconds / total) * (width - LEFT - RIGHT);
        const count = chunked.metrics.chunks;
        const piece = `the prompt whole, ${input.promptTokens} tokens`;
        const pieces = `in ${count} chunks of up to ${input.chunk} tokens`;
        const stripes = `${id}-stripes`;
        const above = lanes(whole, piece, input.promise, x, 0, width, stripes);
        const title = count > 1 ? pieces : "in one chunk: it is not longer";
        const below = lanes(chunked, title, input.promise, x, above.bottom + 8, width, stripes);
        const { grid, labels } = axis(total, x, LANE.title, below.bottom, width);
        const height = below.bottom + LANE.axis - 16;
        return (
            `<svg viewBox="0 0 ${width} ${height}" role="img" aria-labelledby="${id}-title">` +
            `<title id="${id}-title">` +
            "Two timelines of the same requests: a prompt that is computed whole, and in chunks</title>" +
            `<defs><pattern id="${stripes}" width="8" height="8" patternUnits="userSpaceOnUse">` +
            '<path class="stripe" d="M-2 2L2 -2M0 8L8 0M6 10L10 6"/></pattern></defs>' +
            grid +
            above.svg +
            below.svg +
            labels +
            "</svg>"
        );
    }

    return { draw, time };
})();
