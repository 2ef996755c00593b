// What the principal may do, by the roles that `/v1/me` lists. The broker decides again, whatever is decided here.

const RANKS = ["client", "viewer", "operator", "admin"];

/** Whether `me` has the role in a namespace; null: in the whole cluster. */
export function may(me, role, namespace = null) {
  const places = me.roles
    .filter((held) => RANKS.indexOf(held.role) >= RANKS.indexOf(role))
    .flatMap((held) => held.namespaces);
  const tenant = namespace ? `${namespace.split("/")[0]}/*` : null;
  return places.includes("*") || (namespace !== null && (places.includes(namespace) || places.includes(tenant)));
}

/** Why they may not, in words; empty if they may. */
export function whyNot(me, role, namespace = null) {
  return may(me, role, namespace) ? "" : `${me.principal} is not ${role} in ${namespace ?? "the cluster"}`;
}

/** Their highest role anywhere. */
export const highest = (me) => RANKS.findLast((rank) => me.roles.some((held) => held.role === rank)) ?? "no role";

/** The namespaces in which they may see bundles, if not in all. */
export function visible(me) {
  return [...new Set(me.roles.filter((held) => held.role !== "client").flatMap((held) => held.namespaces))];
}
