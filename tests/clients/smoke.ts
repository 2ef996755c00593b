// Uses the generated TypeScript types as their author would, and prints what it saw as JSON: smoke.js URL TOKEN.

import createClient from "openapi-fetch";
import type { components, paths } from "./schema";

const [url, token] = process.argv.slice(2);
const client = createClient<paths>({ baseUrl: url!, headers: { Authorization: `Bearer ${token}` } });
const seen: Record<string, unknown> = {};

function given<T>(value: T | undefined): T {
  if (value === undefined) throw new Error("no answer");
  return value;
}

seen["me"] = given((await client.GET("/v1/me")).data).principal;
const namespace = { params: { path: { tenant: "t", namespace: "ts" } } };
const created = await client.PUT("/admin/v2/namespaces/{tenant}/{namespace}", { ...namespace, body: { numBundles: 4 } });
seen["created"] = created.response.status;
const found = await client.POST("/v1/lookup", { body: { topics: ["t/ts/a", "no/such/topic"] } });
seen["looked up"] = given(found.data).answers.map((each) => !each.error);

const names: string[] = [];
let cursor: string | null = null;
do {
  const query = { namespace: "t/ts", limit: 3, ...(cursor === null ? {} : { cursor }) };
  const page: components["schemas"]["BundlePage"] = given((await client.GET("/v1/bundles", { params: { query } })).data);
  names.push(...page.bundles.map((each) => each.bundle));
  cursor = page.next;
} while (cursor !== null);
seen["bundles"] = names;

const assigned = await client.GET("/v1/bundles", { params: { query: { namespace: "t/ts", state: "assigned" } } });
const hash_range = given(given(assigned.data).bundles[0]).range;
const split: number[] = [];
for (let time = 0; time < 2; time += 1) {
  const answer = await client.POST("/v1/bundles/{tenant}/{namespace}/{hash_range}/split", {
    params: { path: { tenant: "t", namespace: "ts", hash_range }, header: { "Idempotency-Key": "k-ts" } },
  });
  const children = given(answer.data);
  split.push("children" in children ? children.children.length : 0);
}
seen["split"] = split;

const begun = await client.PUT("/admin/v2/namespaces/{tenant}/{namespace}/unload", {
  params: { path: { tenant: "t", namespace: "ts" }, header: { Prefer: "respond-async" } },
});
let operation = given(begun.data) as components["schemas"]["OperationResponse"];
while (operation.state === "running") {
  await new Promise((resolve) => setTimeout(resolve, 50));
  const path = { operation_id: operation.id };
  operation = given((await client.GET("/v1/operations/{operation_id}", { params: { path } })).data);
}
seen["unloaded"] = [operation.state, operation.status];

const put = [];
for (let time = 0; time < 2; time += 1) {
  const answer = await client.PUT("/v1/policies/{kind}/{name}", {
    params: { path: { kind: "namespace", name: "t/ts" }, header: { "if-none-match": "*" } },
    body: { anti_affinity_group: "g" },
  });
  put.push(answer.response.status);
}
seen["policy"] = put;

const missing = await client.GET("/v1/bundles/{tenant}/{namespace}/{hash_range}", {
  params: { path: { tenant: "t", namespace: "ts", hash_range: "0x00000000_0x00000001" } },
});
const problem = given(missing.error);
seen["problem"] = [problem.status, problem.type];
console.log(JSON.stringify(seen));
