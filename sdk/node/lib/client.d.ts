/**
 * The client side of an API that knows `Idempotency-Key`: one key per call, the same on each try.
 *
 * POST and PATCH get a new key, unless the call brings one; other methods do with a key that the
 * call brings. Each try sends the same bytes. There is another try after no answer or a broken one;
 * after 408, 425, 429, 500, 502, 503 and 504; after 409 and 423 with `Retry-After`; after a problem
 * of a gate if its page says that the same request may be sent again. The pause is `Retry-After`,
 * and otherwise grows, by chance between 0 and its most.
 *
 * In the end: a response; a problem of a gate as the error of its name (InFlight, Mismatch, …); or
 * Indeterminate where no answer came. These have `idempotencyKey`, to ask again later.
 */
export interface RetryOptions {
  /** How often a request is sent at most; 5. */
  tries?: number;
  /** Milliseconds that one try may take, its response included; 30000. */
  timeout?: number;
  /** Milliseconds of the first pause at most; 500. Each later one is twice as long. */
  pause?: number;
  /** Milliseconds of any pause at most, but for a Retry-After; 20000. */
  pauseMax?: number;
  /** A longer `Retry-After` (milliseconds; 60000) is not waited for. */
  retryAfterMax?: number;
}

export interface KeyInit extends RequestInit {
  /** 1 to 255 printable ASCII characters; is sent in quotes. */
  idempotencyKey?: string;
}

/**
 * A fetch that tries again. A body may be whatever fetch takes; it is read before the first try, and
 * has 16 MiB at most. `signal` ends tries and pauses.
 */
export function retrying(
  fetch?: typeof globalThis.fetch,
  options?: RetryOptions,
): (input: string | URL | Request, init?: KeyInit) => Promise<Response>;

/**
 * The same for axios: `axios.create({ adapter: axiosAdapter(axios) })`. `idempotencyKey` is a member
 * of a call's config. Statuses are refused as axios does it, with an AxiosError.
 */
export function axiosAdapter(axios: any, options?: RetryOptions): (config: any) => Promise<any>;
