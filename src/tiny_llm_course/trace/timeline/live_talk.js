// What this tab has asked, and how far the answers are. Nothing of a page in here, and nothing that JSON can't hold:
// after a reload it comes back from the browser's storage.
const newEntry = (title, inTalk) => ({ answer: Math.random().toString(36).slice(2), title, inTalk, text: "", error: "", done: false });

// A message of the feed: more of an answer's text, or all of it anew.
const hear = (asked, message) => {
    const entry = asked.find((each) => each.answer === message.answer);
    if (entry) Object.assign(entry, { text: (message.anew ? "" : entry.text) + message.text, error: message.error, done: message.done });
};

// After a new connection: answers that the server does not know any more have ended.
const lose = (asked, known) => {
    for (const entry of asked) if (!entry.done && !known.includes(entry.answer)) Object.assign(entry, { error: "(lost: the server has forgotten it)", done: true });
};

// A question without an answer, as after an error, is left out; an answer that was stopped counts as far as it came.
const messagesOf = (system, asked, question) => [
    ...(system.trim() ? [{ role: "system", content: system }] : []),
    ...asked.filter((entry) => entry.inTalk && entry.done && entry.text)
        .flatMap((entry) => [{ role: "user", content: entry.title }, { role: "assistant", content: entry.text }]),
    { role: "user", content: question },
];
