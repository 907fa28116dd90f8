"use strict";

// What the course's scheduler does with a long prompt while answers are running, and with a short one that comes later,
// in virtual time.
// Numbers in, numbers out: no page and no network. The tests run this file beside the Python scheduler
// (`ChunkedPrefillScheduler`, `ChunkedPrefillMetrics`) and compare every step, time and figure.
// `var`, because the page for printing loads this file once for each widget.
var chunkedPrefillSchedule = (() => {
    /**
     * Seconds of a step: a + b·tokens + c·tokens·context, the line of Day 2.7.
     * `pairs` counts each token of the step with each one that it sees; the context is their mean number.
     */
    function seconds(line, tokens, pairs) {
        return line.a + line.b * tokens + line.c * tokens * (pairs / tokens);
    }

    /**
     * All steps from the moment at which the long prompt arrives to the last token.
     *
     * promptTokens: of the long prompt.
     * chunk: tokens of a chunk, at most; as many as the prompt has, or more, compute it whole.
     * decodes: answers that are running; each had its last token at time 0. There is a free slot for each prompt.
     * answerTokens: that each of them still gets, and so does each prompt.
     * context: tokens that each of them holds at time 0.
     * cost: the two lines {prefill: {a, b, c}, decode: {a, b, c}}, in seconds.
     * late: a second prompt {tokens, arrives}, which arrives at that second; null for none.
     * pausing: whether a prompt makes room for one that is shorter than what is left of it.
     *
     * Returns the spans {kind, start, end, tokens, context, running, prompt} in order, where `prompt` is the number of a
     * chunk's prompt; and the answers and the prompts, with the times of their tokens.
     */
    function schedule({ promptTokens, chunk, decodes, answerTokens, context, cost, late = null, pausing = false }) {
        const request = ({ tokens, arrives }) => ({ tokens, arrives, held: 0, left: answerTokens, times: [] });
        const prompts = [{ tokens: promptTokens, arrives: 0 }, ...(late ? [late] : [])].map(request);
        const answers = Array.from({ length: decodes }, () => ({ held: context, left: answerTokens, times: [0] }));
        let running = [...answers];
        const coming = [...prompts];
        const queue = [];
        const paused = [];
        let pending = null;
        const spans = [];
        let now = 0;

        function span(kind, tokens, pairs, line, more) {
            const start = now;
            now += seconds(line, tokens, pairs);
            spans.push({ kind, start, end: now, tokens, ...more });
        }
        function token(request) {
            request.times.push(now);
            request.left -= 1;
        }
        function arrive() {
            while (coming.length > 0 && coming[0].arrives <= now) queue.push(coming.shift());
        }
        function choose() {
            if (!pending) pending = paused.pop() ?? queue.shift() ?? null;
            const left = pending ? pending.tokens - pending.held : 0;
            const shorter = pausing ? queue.findIndex(({ tokens }) => tokens < left) : -1;
            if (shorter < 0) return;
            paused.push(pending);
            [pending] = queue.splice(shorter, 1);
        }
        function prefill() {
            const before = pending.held;
            const size = Math.min(chunk, pending.tokens - before);
            const pairs = size * before + (size * (size + 1)) / 2;
            const prompt = prompts.indexOf(pending);
            span("chunk", size, pairs, cost.prefill, { context: before, running: running.length, prompt });
            pending.held += size;
            // The last chunk gives the first token, and the prompt decodes in this very step.
            if (pending.held >= pending.tokens) {
                token(pending);
                if (pending.left > 0) running.push(pending);
                pending = null;
            }
        }
        function decode() {
            const pairs = running.reduce((sum, request) => sum + request.held + 1, 0);
            span("decode", running.length, pairs, cost.decode, { context: 0, running: 0, prompt: null });
            for (const request of running) {
                request.held += 1;
                token(request);
            }
            running = running.filter((request) => request.left > 0);
        }

        const works = () => pending || paused.length > 0 || queue.length > 0 || running.length > 0;
        while (works() || coming.length > 0) {
            if (!works()) now = Math.max(now, coming[0].arrives);
            arrive();
            choose();
            if (pending) prefill();
            if (running.length > 0) decode();
        }
        return { spans, answers, prompts };
    }

    /** The gaps between two tokens of one answer, of all answers. */
    function gaps(requests) {
        return requests.flatMap(({ times }) => times.slice(1).map((time, index) => time - times[index]));
    }

    /** The smallest value that p per cent of them do not exceed; null of none. */
    function percentile(values, p) {
        const sorted = [...values].sort((one, other) => one - other);
        return sorted.length ? sorted[Math.ceil((p * sorted.length) / 100) - 1] : null;
    }

    /** Pieces of `promise` tokens beyond the first, which answers wait for in this span. */
    function stalls(span, promise) {
        const waits = span.kind === "chunk" && span.running > 0;
        return waits ? Math.ceil(span.tokens / promise) - 1 : 0;
    }

    /** The figures of a schedule, in seconds. `promise`: prompt tokens that answers agreed to wait for. */
    function metrics({ spans, answers, prompts }, promise) {
        const between = gaps([...answers, ...prompts]);
        const [ttft, lateTtft = null] = prompts.map(({ times, arrives }) => times[0] - arrives);
        return {
            chunks: spans.filter((span) => span.kind === "chunk").length,
            stallSteps: spans.reduce((sum, span) => sum + stalls(span, promise), 0),
            longestGap: percentile(between, 100),
            tbtP50: percentile(between, 50),
            tbtP99: percentile(between, 99),
            ttft,
            lateTtft,
            total: spans[spans.length - 1].end,
        };
    }

    /** The same requests under every policy: prompts whole, in chunks, and in chunks with pausing. One promise for all. */
    function compare(input) {
        const run = (more) => {
            const served = schedule({ ...input, ...more });
            return { ...served, metrics: metrics(served, input.promise) };
        };
        const whole = Math.max(input.promptTokens, input.late ? input.late.tokens : 0);
        return { input, whole: run({ chunk: whole }), chunked: run({}), pausing: run({ pausing: true }) };
    }

    return { schedule, metrics, stalls, compare };
})();
