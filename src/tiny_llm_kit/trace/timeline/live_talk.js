// A conversation: what is sent with the next question, and what was said. Nothing of a page in here.
const messagesOf = (system, talk, question) => [
    ...(system.trim() ? [{ role: "system", content: system }] : []),
    ...talk,
    { role: "user", content: question },
];

// A question without an answer, as after an error, is forgotten; an answer that was stopped counts as far as it came.
const remember = (talk, question, answer) => {
    if (answer) talk.push({ role: "user", content: question }, { role: "assistant", content: answer });
};
