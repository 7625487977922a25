// The key that the gateway is called with: issued for a quarter of an hour, kept in this page's memory alone.
import { say, setup } from "./setup.js";

const SPARE_SECONDS = 30;
let issued = null;
let ends = 0;

async function issue(csrf) {
  const response = await fetch(setup.urls.key, { method: "POST", headers: { "X-CSRFToken": csrf }, redirect: "error" }).catch(() => null);
  if (!response?.ok) throw new Error(say("noKey"));
  const made = await response.json();
  ends = made.expires_at;
  return made.key;
}

/** A key with at least half a minute left; those who ask at once get the same. Throws an Error that says what to do. */
export function apiKey(csrf) {
  // Decided before anything is awaited: columns that ask in one go would each find none, and make one.
  if (!issued || ends - Date.now() / 1000 < SPARE_SECONDS) {
    ends = Infinity; // until it is known: it is under way
    const asked = issue(csrf);
    issued = asked;
    asked.catch(() => {
      if (issued === asked) issued = null;
    });
  }
  return issued;
}
