"use strict";

// What `live_loop.py` runs in the server's page: it records all that changes there, and plays it after a reload.
{
    let tape = [];
    $("window").value = "3"; // seconds of the timeline

    globalThis.record = () => {
        globalThis.requestAnimationFrame = () => 0; // nothing is drawn: the machine belongs to the engine
        const start = performance.now();
        const put = (kind, value) => tape.push([performance.now() - start, kind, value]);
        const listen = async () => {
            for await (const data of dataOf(await fetch("events"))) put("event", data);
        };
        listen();
        const answers = new MutationObserver(() => put("answers", $("answers").innerHTML));
        answers.observe($("answers"), { subtree: true, childList: true, characterData: true });
        globalThis.go = (budget) => {
            put("budget", budget);
            show(budget);
            setBudget().then(() => $("both").click());
        };
    };

    // Whether all five requests of a run have ended.
    globalThis.idle = () => open.size === 0 && run.lanes.length % 5 === 0 && run.lanes.every((lane) => lane.reason !== null);
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
            else if (kind === "answers") {
                $("answers").innerHTML = value;
                $("answers").scrollTop = $("answers").scrollHeight;
            } else {
                const message = JSON.parse(value);
                if (message.kind !== "hello") heard(message);
            }
        }
        return new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true))));
    };
}
