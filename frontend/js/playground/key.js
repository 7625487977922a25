// The key that the gateway is called with: issued for a quarter of an hour, kept in this page's memory alone.
import { say, setup } from "./setup.js";

const SPARE_SECONDS = 30;
let issued = null;

async function issue(csrf) {
  const response = await fetch(setup.urls.key, { method: "POST", headers: { "X-CSRFToken": csrf }, redirect: "error" }).catch(() => null);
  if (!response?.ok) throw new Error(say("noKey"));
  return response.json();
}

/** A key with at least half a minute left; those who ask at once get the same. Throws an Error that says what to do. */
export async function apiKey(csrf) {
  const held = await issued?.catch(() => null);
  if (!held || held.expires_at - Date.now() / 1000 < SPARE_SECONDS) issued = issue(csrf);
  return (await issued).key;
}
