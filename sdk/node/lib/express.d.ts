import type { Hapax, Op } from './index.js';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { MiddlewareOptions } from './middleware.js';

/**
 * A middleware for Express and Connect. What the handler writes is sent once it is stored, and sent
 * again to every repeat; `req.hapax` is the handler's Op. May stand before or behind a body parser.
 * A response over 16 MiB is passed on and not kept: a repeat gets 410.
 */
export function idempotent<R extends IncomingMessage = any>(
  hapax: Hapax,
  options?: MiddlewareOptions<R>,
): (req: R, res: ServerResponse, next: (error?: unknown) => void) => void;

export type { Op };
