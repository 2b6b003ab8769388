import type { Policies, Text } from './index.js';

/**
 * Options of the middlewares. Each may be a function of the request. The key is the header
 * `Idempotency-Key`, and the caller a digest of all credentials of the request, unless they are set.
 * The body of a request without a key is its handler's alone: it is not read, and may be of any length.
 * There is no reconcile hook for HTTP: the option is refused, and so is `onExpired: 'reconcile'`.
 */
export type MiddlewareOptions<R> = {
  [P in keyof Policies]: Policies[P] | ((request: R) => Policies[P]);
} & {
  /** Namespace of the keys; `default`. */
  scope?: string | ((request: R) => string);
  key?: (request: R) => Text | undefined | Promise<Text | undefined>;
  owner?: (request: R) => Text | Promise<Text>;
  caller?: (request: R) => Text | Text[] | Promise<Text | Text[]>;
  /** What else makes the request this request, besides method, host, path, query and body. */
  fingerprint?: Text[] | ((request: R) => Text[]);
  /** What of the body counts: `body`, `json`, `+/POINTER …`, `-/POINTER …`, `off`. */
  select?: string;
  what?: string | ((request: R) => string);
  /** The methods that are operations; all but GET, HEAD, OPTIONS and TRACE. */
  methods?: string[];
};
