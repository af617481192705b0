// Asks the service. An answer that is an error becomes an Error with the service's own words.

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

export async function ask(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const answer = await fetch(`api/${path}${query.size ? `?${query}` : ""}`, { headers: { Accept: "application/json" }, credentials: "same-origin" });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, body.detail || `the service answered ${answer.status}`);
  return body;
}

/** Trade a token for a cookie; true when it was right. */
export async function signIn(token) {
  const answer = await fetch("api/session", { method: "POST", body: token, credentials: "same-origin" });
  return answer.status === 204;
}
