"use strict";

// What `live_loop.py` runs in the server's page: it records all that changes there, and plays it after a reload.
{
    let tape = [];
    $("window").value = "3"; // seconds of the timeline

    globalThis.record = () => {
        globalThis.requestAnimationFrame = () => 0; // nothing is drawn: the machine belongs to the engine
        const start = performance.now();
        const put = (kind, value) => tape.push([performance.now() - start, kind, value]);
        feed.abort(); // a tab has one reader: this one
        feed = null;
        let known = 0;
        const listen = async () => {
            for await (const data of dataOf(await fetch("events", { headers: headers() }))) {
                if (asked.length > known) put("asked", JSON.stringify(asked.slice(known)));
                known = asked.length;
                put("event", data);
                heard(JSON.parse(data));
            }
        };
        listen();
        globalThis.go = (budget) => {
            put("budget", budget);
            show(budget);
            setBudget(budget).then(() => $("both").click());
        };
    };

    // Whether all five requests of a run have ended.
    globalThis.idle = () => asked.length % 5 === 0 && asked.every((entry) => entry.done) && run.lanes.every((lane) => lane.reason !== null);
    globalThis.recorded = () => tape;

    const show = (budget) => {
        $("budget").value = run.hello.budgets.indexOf(budget);
        sayBudget(budget);
    };

    // Fewer answers and no map of blocks: so everything else fits.
    globalThis.insert = (recorded) => {
        tape = recorded;
        const style = document.createElement("style");
        style.textContent = "#answers { height: 5rem } details, .column p.quiet, section:has(#map) { display: none }";
        document.head.append(style);
    };

    // Goes on to a time of the recording, and waits until the page has drawn it.
    globalThis.play = (until) => {
        for (; tape.length && tape[0][0] <= until; tape.shift()) {
            const [, kind, value] = tape[0];
            if (kind === "budget") show(value);
            else if (kind === "asked") asked.push(...JSON.parse(value).map((entry) => ({ ...entry, text: "", done: false })));
            else {
                const message = JSON.parse(value);
                if (message.kind !== "hello") heard(message);
            }
        }
        return new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))));
    };
}
