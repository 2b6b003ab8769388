import type { Hapax } from './index.js';
import type { MiddlewareOptions } from './middleware.js';

/**
 * A middleware of Hono. `c.get('hapax')` is the handler's Op; options get the context. Request and response of an
 * operation are read whole into memory.
 */
export function idempotent<C = any>(
  hapax: Hapax,
  options?: MiddlewareOptions<C>,
): (c: any, next: () => Promise<void>) => Promise<undefined | void>;
