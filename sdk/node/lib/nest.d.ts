import type { Hapax } from './index.js';
import type { MiddlewareOptions } from './middleware.js';

/** Marks a handler, or all handlers of a controller, as operations. Options get the request. */
export function Idempotent<R = any>(options?: MiddlewareOptions<R>): MethodDecorator & ClassDecorator;

/**
 * Runs what is marked. `app.useGlobalInterceptors(new IdempotentInterceptor(connect()))`, or a
 * provider of APP_INTERCEPTOR. Its options are the default for all. `request.hapax` is the Op.
 */
export class IdempotentInterceptor {
  constructor(hapax: Hapax, options?: MiddlewareOptions<any>);
  intercept(context: any, next: any): any;
}
