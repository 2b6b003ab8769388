import type { Hapax } from './index.js';
import type { MiddlewareOptions } from './middleware.js';

/** A `preHandler` hook of Fastify, for a route or for all. `request.hapax` is the handler's Op. */
export function idempotent<R = any>(
  hapax: Hapax,
  options?: MiddlewareOptions<R>,
): (request: any, reply: any, done: (error?: Error) => void) => void;
