"use strict";

// What the course's scheduler does with one long prompt while answers are running, in virtual time.
// Numbers in, numbers out: no page and no network. The tests run this file beside the Python scheduler
// (`ChunkedPrefillScheduler`, `ChunkedPrefillMetrics`) and compare every step, time and figure.
const chunkedPrefillSchedule = (() => {
    /**
     * Seconds of a step: a + b·tokens + c·tokens·context, the line of Day 2.7.
     * `pairs` counts each token of the step with each one that it sees; the context is their mean number.
     */
    function seconds(line, tokens, pairs) {
        return line.a + line.b * tokens + line.c * tokens * (pairs / tokens);
    }

    /**
     * All steps from the moment at which the prompt arrives to the last token.
     *
     * promptTokens: of the long prompt.
     * chunk: tokens of a chunk, at most; as many as the prompt has, or more, compute it whole.
     * decodes: answers that are running; each had its last token at time 0. There is a free slot for the prompt.
     * answerTokens: that each of them still gets, and so does the prompt.
     * context: tokens that each of them holds at time 0.
     * cost: the two lines {prefill: {a, b, c}, decode: {a, b, c}}, in seconds.
     *
     * Returns the spans {kind, start, end, tokens, context, running} in order, and the requests, the prompt last,
     * with the times of their tokens.
     */
    function schedule({ promptTokens, chunk, decodes, answerTokens, context, cost }) {
        const prompt = { held: 0, left: answerTokens, times: [] };
        let running = Array.from({ length: decodes }, () => ({ held: context, left: answerTokens, times: [0] }));
        const requests = [...running, prompt];
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
        function prefill() {
            const before = prompt.held;
            const size = Math.min(chunk, promptTokens - before);
            const pairs = size * before + (size * (size + 1)) / 2;
            span("chunk", size, pairs, cost.prefill, { context: before, running: running.length });
            prompt.held += size;
            // The last chunk gives the first token, and the prompt decodes in this very step.
            if (prompt.held === promptTokens) {
                token(prompt);
                if (prompt.left > 0) running.push(prompt);
            }
        }
        function decode() {
            const pairs = running.reduce((sum, request) => sum + request.held + 1, 0);
            span("decode", running.length, pairs, cost.decode, { context: 0, running: 0 });
            for (const request of running) {
                request.held += 1;
                token(request);
            }
            running = running.filter((request) => request.left > 0);
        }

        while (prompt.held < promptTokens || running.length > 0) {
            if (prompt.held < promptTokens) prefill();
            if (running.length > 0) decode();
        }
        return { spans, requests };
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
    function metrics({ spans, requests }, promise) {
        const between = gaps(requests);
        return {
            chunks: spans.filter((span) => span.kind === "chunk").length,
            stallSteps: spans.reduce((sum, span) => sum + stalls(span, promise), 0),
            longestGap: percentile(between, 100),
            tbtP50: percentile(between, 50),
            tbtP99: percentile(between, 99),
            ttft: requests[requests.length - 1].times[0],
            total: spans[spans.length - 1].end,
        };
    }

    /** The same requests twice: the prompt whole, and in chunks. Both are judged by the same promise. */
    function compare(input) {
        const judged = (run) => ({ ...run, metrics: metrics(run, input.promise) });
        return {
            input,
            whole: judged(schedule({ ...input, chunk: input.promptTokens })),
            chunked: judged(schedule(input)),
        };
    }

    return { schedule, metrics, stalls, compare };
})();
