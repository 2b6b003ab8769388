// SPDX-License-Identifier: Apache-2.0
// NestJS, on Express or Fastify: a decorator and an interceptor. nest.d.ts is the manual.
//
// Where nothing runs, Nest still writes a response of its own once the interceptor is done. The
// answer has been sent by then, and what Nest writes is dropped.
'use strict';

const { guard, mute, send } = require('./http.js');

const OPTIONS = Symbol.for('hapax-sdk.options');

function Idempotent(options = {}) {
  return (target, name, descriptor) => {
    (descriptor?.value ?? target)[OPTIONS] = options;
  };
}

class IdempotentInterceptor {
  constructor(hapax, options = {}) {
    this.hapax = hapax;
    this.options = options;
  }

  intercept(context, next) {
    const options = context.getHandler()[OPTIONS] ?? context.getClass()[OPTIONS];
    if (options === undefined || context.getType() !== 'http') return next.handle();
    const { from, of, switchMap } = require('rxjs');
    const request = context.switchToHttp().getRequest();
    const response = context.switchToHttp().getResponse();
    const at = { req: request.raw ?? request, res: response.raw ?? response, subject: request, parsed: request.body };

    const decided = new Promise((resolve, reject) => {
      const run = () => resolve(true);
      const reply = (answer) => {
        send(at.res, answer);
        mute(at.res);
        resolve(false);
      };
      guard(this.hapax, { ...this.options, ...options }, at, { run, reply }).catch(reject);
    });
    return from(decided).pipe(switchMap((runs) => (runs ? next.handle() : of(undefined))));
  }
}

module.exports = { Idempotent, IdempotentInterceptor };
