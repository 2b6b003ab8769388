import type { Hapax, MessageOptions, Op, Policies, Text } from './index.js';

/** Options of a processor; each may be a function of the job. */
export type ProcessorOptions<J> = {
  [P in keyof Policies]: Policies[P] | ((job: J) => Policies[P]);
} & {
  /** Default: the queue's name. */
  scope?: string | ((job: J) => string);
  /** Default: the job's id. A job that the function gives no key is dead. */
  key?: (job: J) => Text;
  owner?: (job: J) => Text;
  caller?: (job: J) => Text | Text[];
  /** Default: the job's data. */
  fingerprint?: (job: J) => unknown;
  codec?: MessageOptions['codec'];
  message?: MessageOptions['message'];
};

/**
 * A processor for a Worker of BullMQ: runs the handler once for each job's key, and gives repeats
 * its result. A retry is moved to `delayed` for as long as the door says, or for a second where there
 * is no door, and uses up no attempt of BullMQ's: without `attemptsMax` there is no end to them. What
 * is dead or parked fails for good, with `dead:` or `park:` in its reason. A Refused or an
 * UnrecoverableError of the handler makes a job dead.
 */
export function idempotent<J = any, T = any>(
  hapax: Hapax,
  options: ProcessorOptions<J>,
  handler: (job: J, op: Op) => T | Promise<T>,
): (job: any, token?: string, signal?: AbortSignal) => Promise<T>;
