/* SPDX-License-Identifier: Apache-2.0
 *
 * hapax lambda: the Lambda door. Starts a function's runtime as its child, and is the Runtime API
 * for that child.
 *
 * The invariants: hapax ends when the child does, with the child's status; signals go to the child.
 * A wrong setting is printed, and posted to init/error, where AWS shows it. The store is opened
 * while the runtime starts, so that a cold start does not wait for both in turn. The first event is
 * asked for once the store was tried.
 */
#include "advice.h"
#include "child.h"
#include "policies.h"

#include "door/lambda/proxy.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define POLICIES  20u
#define CALLS_MAX 32768u
#define AGAIN_MS  200 /* between two tries to open the store */

struct lambda_args {
    struct cli_args args;
    const char *key;
    const char *no_key;
    const char *owner;
    const char *caller;
    const char *scope;
    const char *fingerprint;
    const char *step;
    const char *batch_report;
    const char *listen;
    const char *emf;
    struct cli_telling telling;
    const char *policies[POLICIES];
};

#define TEXT(option, placeholder, field, text)                                                     \
    CLI_TEXT_OPTION(struct lambda_args, field, option, placeholder, text)

/* The policies come last. pass-token is not among them: a runtime cannot be given a token. */
static const struct cli_option options[] = {
    TEXT("key", "SOURCES", key, "Headers, JSON Pointers, event-id, request-id or payload"),
    TEXT("no-key", "WHAT", no_key, "An event without a key: run or fail (default run)"),
    TEXT("owner", "POINTER", owner, "Whose key it is, as /requestContext/identity/apiKeyId"),
    TEXT("caller", "POINTER", caller,
         "Who asks; or none (default: all credentials of an HTTP event)"),
    TEXT("scope", "NAME", scope, "Space of the keys (default: the function's name)"),
    TEXT("fingerprint", "PARTS", fingerprint,
         "What is compared in a repeat, as \"json -/sent_at\" (default \"method uri body\")"),
    TEXT("step", "NAME", step, "A part of the operation that the key names"),
    TEXT("batch-report", "on|off", batch_report,
         "Whether the event source reads batchItemFailures (default on)"),
    TEXT("listen", "ADDRESS", listen,
         "Where the runtime finds it (default 127.0.0.1:9009, or another port)"),
    TEXT("emf", "NAMESPACE", emf,
         "After an invocation, a line of CloudWatch's metrics on stdout (default: none)"),
    CLI_TELLING_OPTIONS(struct lambda_args, telling),
    TEXT("profile", "payments", policies[0], CLI_PROFILE_HELP),
    TEXT("lease", "TIME", policies[1],
         "A claim lasts so long, and is renewed (default: until the deadline, and 1s)"),
    TEXT("run-max", "TIME", policies[2], "With --lease, how long it is renewed (default 1h)"),
    TEXT("retention", "TIME", policies[3], "How long an outcome is kept (default 24h)"),
    TEXT("wait", "TIME", policies[4],
         "How long a repeat waits for the first (default 0: not at all)"),
    TEXT("timeout", "TIME", policies[5], "How long to try the store before a run (default 2s)"),
    TEXT("save-wait", "TIME", policies[6], "How long an outcome waits to be stored (default 2s)"),
    TEXT("on-expired", "WHAT", policies[7], "A claim died: rerun or hold (default rerun)"),
    TEXT("on-failed", "WHAT", policies[8],
         "An error or a 5xx: retry, replay or hold (default: by --on-expired)"),
    TEXT("on-store-error", "WHAT", policies[9],
         "closed: nothing runs; open: unprotected (default closed)"),
    TEXT("attempts-max", "N", policies[10],
         "After so many the last failure is the answer (default 0: never)"),
    TEXT("max-request", "SIZE", policies[11], "A larger body is refused (default 6m)"),
    TEXT("max-response", "SIZE", policies[12], "A larger body is not kept (default 6m)"),
    TEXT("rerun-completed", "on", policies[13], "No replays, only exclusion (default off)"),
    TEXT("key-min", "N", policies[14], CLI_KEY_MIN_HELP),
    TEXT("owner-required", "on", policies[15], CLI_OWNER_REQUIRED_HELP),
    TEXT("key-expires", "on", policies[16], CLI_KEY_EXPIRES_HELP),
    TEXT("retention-4xx", "TIME", policies[17], CLI_4XX_HELP),
    TEXT("retention-failed", "TIME", policies[18], CLI_KEPT_FAILED_HELP),
    TEXT("tombstone", "TIME", policies[19], CLI_TOMBSTONE_HELP),
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

struct serving {
    struct lambda_args *args;
    struct hapax_lambda lambda;
    struct hapax_lambda_stats stats;
    struct hapax__ask ask;
    struct hapax__function function;
    struct hapax__upstream *upstream;
    struct hapax__proxy *proxy;
    struct cli_secrets secrets;
    struct cli_secret keys;
    struct hapax__traces *traces;
    int signals;
    pid_t child;
    pthread_t opener;
    atomic_bool closing; /* no store is opened any more */
    /* No retry can open the store, because of error and text. Set after both. */
    atomic_bool refused;
    enum hapax_error error;
    char text[HAPAX_TEXT_MAX];
};

static void say(void *arg, const char *line)
{
    const struct serving *serving = arg;

    cli_log(&serving->args->args, line);
}

/* In one write, since the function has the same stdout. A line that cannot be written is lost. */
static void put_metrics(void *arg, const char *line)
{
    struct iovec parts[] = {{(char *)line, strlen(line)}, {"\n", 1}};

    (void)arg;
    (void)!writev(STDOUT_FILENO, parts, 2);
}

/* ---- failures -------------------------------------------------------------------------- */

/* Prints a text, and posts it to init/error. */
static enum cli_exit failed(struct serving *serving, enum cli_exit exit, enum hapax_error error,
                            const char *text)
{
    struct hapax__lambda_reply reply;
    struct hapax__got got;

    if (serving->upstream &&
        hapax__reply_error(&reply, exit == CLI_USAGE ? "Settings" : "CannotStart", text, NULL)) {
        if (hapax__upstream_post(&got, serving->upstream, (struct hapax_span){NULL, 0}, &reply))
            hapax__got_release(&got);
        hapax__reply_release(&reply);
    }
    return cli_fail(&serving->args->args, exit, error, "%s", text);
}

__attribute__((format(printf, 3, 4))) static enum cli_exit
refused(struct serving *serving, enum hapax_error error, const char *format, ...)
{
    char text[HAPAX_TEXT_MAX + 64];
    va_list list;

    va_start(list, format);
    (void)vsnprintf(text, sizeof(text), format, list);
    va_end(list);
    return failed(serving, error == HAPAX_ERR_NOMEM ? CLI_UNREACHED : CLI_USAGE, error, text);
}

/* ---- settings ---------------------------------------------------------------------------- */

static enum cli_exit read_word(bool *first, struct serving *serving, const char *option,
                               const char *value, const char *const words[2])
{
    char text[HAPAX_TEXT_MAX];

    if (!value)
        return CLI_DONE;
    if (strcmp(value, words[0]) == 0 || strcmp(value, words[1]) == 0) {
        *first = strcmp(value, words[0]) == 0;
        return CLI_DONE;
    }
    (void)snprintf(text, sizeof(text), "\"%.100s\" is not %s or %s", value, words[0], words[1]);
    return refused(serving, HAPAX_ERR_INVALID, "--%s %s", option, text);
}

static enum cli_exit read_policies(struct serving *serving)
{
    const struct lambda_args *args = serving->args;
    char text[HAPAX_TEXT_MAX];

    for (size_t i = 0; i < POLICIES; i++) {
        const char *name = options[OPTIONS - POLICIES + i].name;

        if (!args->policies[i])
            continue;
        if (hapax_policy_set(&serving->lambda.policy, name, args->policies[i], text) !=
            HAPAX_ERR_NONE)
            return refused(serving, HAPAX_ERR_INVALID, "--%s: %s", name, text);
        if (strcmp(name, "lease") == 0)
            serving->lambda.lease_set = true;
    }
    return CLI_DONE;
}

/* Lambda's own variable: if it is no number, that is no mistake of the user's. */
static uint32_t read_concurrency(void)
{
    const char *value = getenv("AWS_LAMBDA_MAX_CONCURRENCY");
    unsigned long n = value ? strtoul(value, NULL, 10) : 1;

    return n < 1                              ? 1
           : n > HAPAX_LAMBDA_CONCURRENCY_MAX ? HAPAX_LAMBDA_CONCURRENCY_MAX
                                              : (uint32_t)n;
}

static enum cli_exit read_settings(struct serving *serving)
{
    static const char *const no_keys[2] = {"run", "fail"}, *const reports[2] = {"on", "off"};
    const struct lambda_args *args = serving->args;
    struct hapax_lambda *lambda = &serving->lambda;
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;
    enum cli_exit exit;
    bool run = true;

    lambda->key = args->key;
    lambda->fingerprint = args->fingerprint;
    lambda->step = args->step;
    lambda->owner = args->owner;
    lambda->caller = args->caller;
    lambda->scope = args->scope ? args->scope : getenv("AWS_LAMBDA_FUNCTION_NAME");
    lambda->concurrency = read_concurrency();
    /* Where this is set the sandbox outlives an invocation's deadline, and so does its code. */
    lambda->lease_set = getenv("AWS_LAMBDA_MAX_CONCURRENCY") != NULL;
    lambda->log = say;
    lambda->log_arg = serving;
    lambda->emf = args->emf;
    lambda->emf_function = getenv("AWS_LAMBDA_FUNCTION_NAME");
    lambda->emf_line = put_metrics;
    exit = read_word(&run, serving, "no-key", args->no_key, no_keys);
    if (exit == CLI_DONE)
        exit =
            read_word(&lambda->batch_report, serving, "batch-report", args->batch_report, reports);
    if (exit == CLI_DONE)
        exit = read_policies(serving);
    if (args->no_key)
        lambda->policy.key = run ? HAPAX_KEY_OPTIONAL : HAPAX_KEY_REQUIRED;
    if (exit != CLI_DONE)
        return exit;
    error = hapax_lambda_check(lambda, text);
    if (error == HAPAX_ERR_NONE)
        error = hapax__event_ask_read(&serving->ask, lambda, text);
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    /* A text of the library begins with a setting's name, which is an option here. */
    for (char *at = text; *at != '\0' && *at != ' '; at++)
        *at = *at == '_' ? '-' : *at;
    return refused(serving, error, "--%s", text);
}

static enum cli_exit open_upstream(struct serving *serving)
{
    const char *address = getenv("HAPAX_LAMBDA_RUNTIME_API");
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    if (!address || *address == '\0')
        address = getenv("AWS_LAMBDA_RUNTIME_API");
    if (!address || *address == '\0')
        return cli_fail(&serving->args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "AWS_LAMBDA_RUNTIME_API is not set: there is no Lambda around");
    error = hapax__upstream_open(&serving->upstream, address, -1, text);
    if (error == HAPAX_ERR_NONE)
        return CLI_DONE;
    return cli_fail(&serving->args->args, CLI_USAGE, error, "AWS_LAMBDA_RUNTIME_API: %s", text);
}

static enum cli_exit open_proxy(struct serving *serving)
{
    char text[HAPAX_TEXT_MAX];
    enum hapax_error error;

    serving->function.lambda = &serving->lambda;
    serving->function.ask = &serving->ask;
    serving->function.stats = &serving->stats;
    error = hapax__proxy_open(&serving->proxy, &serving->function, serving->upstream,
                              serving->args->listen, text);
    if (error != HAPAX_ERR_NONE)
        return refused(serving, error, "--%s", text);
    if (serving->args->args.by_default)
        return refused(
            serving, HAPAX_ERR_INVALID,
            "no store is named: give --store URI, or set HAPAX_STORE; a sandbox has no disk "
            "that others see");
    return CLI_DONE;
}

/* ---- the store --------------------------------------------------------------------------- */

static bool mends(enum hapax_error error)
{
    return error == HAPAX_ERR_UNAVAILABLE || error == HAPAX_ERR_INDETERMINATE;
}

/* Only watch(), which knows whether the child still lives, may end the child. SIGCHLD wakes
 * watch(). */
static void refuse_store(struct serving *serving, enum hapax_error error, const char *text)
{
    serving->error = error;
    (void)snprintf(serving->text, sizeof(serving->text), "%s", text);
    atomic_store(&serving->refused, true);
    (void)kill(getpid(), SIGCHLD);
}

/* Tries until the store is open. Meanwhile events are answered by policy on_store_error. */
static void *open_store(void *arg)
{
    struct serving *serving = arg;
    const struct hapax__secrets secrets = cli_secrets_of(&serving->secrets);
    struct hapax_options how = {
        .secret = secrets.now,
        .secret_old = secrets.old,
        .keys = {serving->keys.bytes, serving->keys.len},
        .calls_max = CALLS_MAX,
    };
    char text[HAPAX_TEXT_MAX];
    bool told = false;

    do {
        struct hapax *h;
        enum hapax_error error = hapax_open(&h, serving->args->args.store, &how, text);

        if (error == HAPAX_ERR_NONE) {
            hapax__use_traces(h, serving->traces);
            atomic_store(&serving->function.h, h);
        } else if (!mends(error)) {
            refuse_store(serving, error, text);
            return NULL;
        } else if (!told) {
            say(serving, text[0] ? text : "the store is away");
            told = true;
        }
        hapax__proxy_ready(serving->proxy);
        if (error != HAPAX_ERR_NONE)
            usleep(AGAIN_MS * 1000);
    } while (!atomic_load(&serving->function.h) && !atomic_load(&serving->closing));
    return NULL;
}

static void close_store(struct serving *serving)
{
    const struct hapax_policy *policy = &serving->lambda.policy;
    struct hapax *h = atomic_load(&serving->function.h);

    bool over = hapax__proxy_lost(serving->proxy, policy->timeout_ms + policy->save_wait_ms);

    hapax__function_tell(&serving->function);
    if (over && h)
        (void)hapax_close(h, policy->save_wait_ms);
    else if (h)
        return; /* it may still tell */
    hapax__traces_close(serving->traces);
}

/* Uses the CAs that the layer brings, for the store's TLS. The function must not see them, so this
 * comes after the fork; and setenv() is safe only before there are threads. */
static void use_ca(void)
{
    const char *ca = getenv("HAPAX_CA_FILE");

    if (!ca || *ca == '\0')
        return;
    (void)setenv("AWS_CA_BUNDLE", ca, 0);
    (void)setenv("SSL_CERT_FILE", ca, 0);
}

/* ---- the child --------------------------------------------------------------------------- */

static void exec_child(const struct serving *serving, pid_t parent)
{
    char **words = serving->args->args.words;
    sigset_t none;

    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(CLI_SIGNALLED + SIGKILL);
    (void)execvp(words[0], words);
    (void)fprintf(stderr, "hapax lambda: cannot start \"%s\": %s\n", words[0], strerror(errno));
    _exit(errno == ENOENT || errno == ENOTDIR ? CLI_NOT_FOUND : CLI_NOT_RUNNABLE);
}

static enum cli_exit start_child(struct serving *serving)
{
    pid_t parent = getpid();

    /* Another proxy in the child must ask this one. */
    if (setenv("AWS_LAMBDA_RUNTIME_API", hapax__proxy_address(serving->proxy), 1) != 0 ||
        unsetenv("HAPAX_LAMBDA_RUNTIME_API") != 0)
        return refused(serving, HAPAX_ERR_NOMEM, "out of memory");
    serving->child = fork();
    if (serving->child == 0)
        exec_child(serving, parent);
    if (serving->child < 0)
        return refused(serving, HAPAX_ERR_NOMEM, "cannot start a process: %s", strerror(errno));
    return CLI_DONE;
}

/* Waits for the child's end; returns its status as a shell does. If we are process 1, the children
 * of others may end here, too. */
static int watch(struct serving *serving)
{
    for (;;) {
        int signal = cli_signals_wait(serving->signals, -1);
        pid_t ended;
        int status;

        if (signal != SIGCHLD && signal != 0)
            (void)kill(serving->child, signal);
        while ((ended = waitpid(-1, &status, WNOHANG)) > 0)
            if (ended == serving->child)
                return WIFSIGNALED(status) ? CLI_SIGNALLED + WTERMSIG(status) : WEXITSTATUS(status);
        if (atomic_load(&serving->refused))
            (void)kill(serving->child, SIGKILL);
    }
}

static enum cli_exit serve(struct serving *serving)
{
    enum cli_exit exit = start_child(serving);
    int status;

    if (exit != CLI_DONE)
        return exit;
    use_ca();
    if (!hapax__proxy_start(serving->proxy) ||
        pthread_create(&serving->opener, NULL, open_store, serving) != 0) {
        (void)kill(serving->child, SIGKILL);
        return refused(serving, HAPAX_ERR_NOMEM, "no thread is left");
    }
    status = watch(serving);
    atomic_store(&serving->closing, true);
    (void)pthread_join(serving->opener, NULL);
    close_store(serving);
    if (serving->error != HAPAX_ERR_NONE)
        return failed(serving, serving->error == HAPAX_ERR_REFUSED ? CLI_UNREACHED : CLI_USAGE,
                      serving->error, serving->text);
    return (enum cli_exit)status;
}

/* ---- the command --------------------------------------------------------------------------- */

static enum cli_exit run(struct cli_args *args)
{
    /* Threads may still wait for the Runtime API, and use all this until the process ends. */
    static struct serving standing;
    struct serving *serving = &standing;
    enum cli_exit exit;

    serving->args = (struct lambda_args *)args;
    hapax_lambda_init(&serving->lambda);
    if (!args->words || !args->words[0])
        return cli_fail(args, CLI_USAGE, HAPAX_ERR_INVALID,
                        "COMMAND is missing: -- and the function's runtime, as -- \"$@\"");
    serving->signals = cli_signals_begin_parent();
    exit = open_upstream(serving);
    if (exit == CLI_DONE)
        exit = read_settings(serving);
    if (exit == CLI_DONE)
        exit = cli_secrets_read(&serving->secrets, args);
    if (exit == CLI_DONE)
        exit = cli_keys_read(&serving->keys, args);
    if (exit == CLI_DONE)
        exit = cli_prepare(args, CLI_CREATE);
    if (exit == CLI_DONE)
        exit =
            cli_traces_open(&serving->traces, args, &serving->args->telling, HAPAX__TRACED_LAMBDA);
    if (exit == CLI_DONE)
        exit = open_proxy(serving);
    if (exit == CLI_DONE)
        exit = serve(serving);
    explicit_bzero(&serving->secrets, sizeof(serving->secrets));
    explicit_bzero(&serving->keys, sizeof(serving->keys));
    return exit;
}

static enum cli_exit advise(struct cli_args *args, const struct cli_advice *to)
{
    static struct serving standing;
    struct serving *serving = &standing;
    struct cli_door door = {
        .apart = "callers of HTTP events are told apart by their credentials",
        .risk = "no --owner: tenants who are told apart by something else than credentials share "
                "keys, and are given one another's answers; name the place in the event that says "
                "whose key it is",
    };
    enum cli_exit exit;

    serving->args = (struct lambda_args *)args;
    hapax_lambda_init(&serving->lambda);
    exit = read_settings(serving);
    door.policy = &serving->lambda.policy;
    door.owner = serving->lambda.owner;
    door.caller = serving->lambda.caller;
    if (exit == CLI_DONE)
        cli_advise_door(to, &door);
    return exit;
}

const struct cli_command cli_lambda = {
    .name = "lambda",
    .summary = "run each event of a Lambda function once, whatever its language",
    .synopsis = {"[--key SOURCES] [--POLICY VALUE]... -- COMMAND [ARG]..."},
    .words = true,
    .prose =
        "Starts COMMAND, a function's runtime, and stands between it and the Lambda Runtime API: "
        "takes each event, claims its operation, and hands it on, or posts the stored response "
        "itself. The response is stored before it is posted. A lease lasts until the invocation's "
        "deadline.\n\n"
        "As a layer (AWS_LAMBDA_EXEC_WRAPPER) it needs no option: each has a variable, as "
        "HAPAX_STORE or HAPAX_ON_FAILED. In a container, and with provided runtimes, it is the "
        "entry point.\n\n"
        "The key is the header Idempotency-Key of an HTTP event, or the id of a message, a record "
        "or an event; or what --key names. Of a batch each record is an operation: those that are "
        "not done are named in batchItemFailures, which the event source must be set up to read, "
        "or say --batch-report off. HAPAX_LAMBDA_RUNTIME_API names the Runtime API where another "
        "proxy stands behind.",
    .options = options,
    .option_count = OPTIONS,
    .examples =
        {
            {"hapax lambda --store dynamodb://eu-west-1/hapax -- \"$@\"", "A wrapper's last line"},
            {"hapax lambda --key /detail/order_id --on-expired hold -- ./bootstrap",
             "A key within the event, and effects that must not repeat"},
        },
    .settings = true,
    .args_size = sizeof(struct lambda_args),
    .run = run,
    .advise = advise,
};
