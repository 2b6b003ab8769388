/* SPDX-License-Identifier: Apache-2.0
 *
 * nginx as a child of hapax serve: found, tried, started, watched.
 *
 * nginx must not outlive this process, whose store its workers use. Before the child becomes nginx,
 * it asks the kernel for SIGTERM at this process's death. SIGTERM makes the master end its workers;
 * SIGKILL would leave them. nginx leads a process group of its own: so Ctrl-C reaches it through
 * this process alone, and workers whose master was killed can be found and ended. Where both this
 * process and the master are killed, the kernel ends the workers: the module asks it to, told by
 * HAPAX_SERVED.
 */
#include "serve.h"

#include "base/span.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_MAX     16384u
#define VERSION_MIN    1022000u
#define MODULE_NAME    "ngx_http_hapax_module.so"
#define MODULE_DEFAULT "modules/" MODULE_NAME

/* ---- children -------------------------------------------------------------------------------- */

/* In the child. Never returns. */
static void become(const char *const words[], pid_t parent)
{
    sigset_t none;

    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) /* it died before the line above */
        _exit(127);
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setenv("HAPAX_SERVED", "1", 1);
    execv(words[0], (char *const *)(uintptr_t)words);
    _exit(127);
}

/* Runs a program to its end. Returns its exit status; 127: it could not be run. output is cut at
 * size. */
static int run_once(const char *const words[], char *output, size_t size)
{
    pid_t parent = getpid();
    char ignored[512];
    size_t len = 0;
    int status = 0;
    int ends[2];
    ssize_t got;
    pid_t child;

    output[0] = '\0';
    if (pipe2(ends, O_CLOEXEC) != 0)
        return 127;
    child = fork();
    if (child == 0) {
        (void)dup2(ends[1], STDOUT_FILENO);
        (void)dup2(ends[1], STDERR_FILENO);
        become(words, parent);
    }
    close(ends[1]);
    while (child > 0) {
        bool room = len + 1 < size;

        got = read(ends[0], room ? output + len : ignored, room ? size - 1 - len : sizeof(ignored));
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        len += room ? (size_t)got : 0;
    }
    output[len] = '\0';
    close(ends[0]);
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return child > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 127;
}

/* ---- finding --------------------------------------------------------------------------------- */

/* A folder may be searched, which access() takes for the right to execute it. */
static bool is_program(const char *path)
{
    struct stat is;

    return access(path, X_OK) == 0 && stat(path, &is) == 0 && S_ISREG(is.st_mode);
}

static bool find_program(char out[PATH_MAX], const char *name)
{
    static const char *const more[] = {"/usr/sbin", "/usr/local/sbin", "/usr/local/nginx/sbin"};
    const char *path = getenv("PATH");

    while (path && *path) {
        size_t len = strcspn(path, ":");
        int total = snprintf(out, PATH_MAX, "%.*s/%s", (int)(len < PATH_MAX ? len : 0), path, name);

        if (len > 0 && total > 0 && total < PATH_MAX && is_program(out))
            return true;
        path += len + (path[len] == ':' ? 1 : 0);
    }
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        (void)snprintf(out, PATH_MAX, "%s/%s", more[i], name);
        if (is_program(out))
            return true;
    }
    return false;
}

/* "nginx version: nginx/1.22.1 (Debian)"; other builds have other names before the slash. */
static unsigned parse_version(const char *text)
{
    const char *at = strstr(text, "version: ");
    unsigned parts[3] = {0, 0, 0};
    char *end;

    at = at ? strchr(at, '/') : NULL;
    for (size_t i = 0; at && i < 3; i++) {
        unsigned long part = strtoul(at + 1, &end, 10);

        if (end == at + 1 || part > 999)
            return 0;
        parts[i] = (unsigned)part;
        at = *end == '.' ? end : NULL;
    }
    return parts[0] * 1000000 + parts[1] * 1000 + parts[2];
}

/* The value of one of the words that nginx was configured with; false: it has none. */
static bool configured(char *out, size_t size, const char *text, const char *name)
{
    const char *at = strstr(text, name);
    size_t len;

    if (!at)
        return false;
    at += strlen(name);
    len = strcspn(at, " '\n");
    if (len == 0 || len >= size)
        return false;
    (void)snprintf(out, size, "%.*s", (int)len, at);
    return true;
}

/* Finds the module: beside this binary, as the build leaves it, or where nginx has its modules. */
static bool find_module(char out[PATH_MAX], const char *settings)
{
    char folder[PATH_MAX - 64];
    ssize_t len = readlink("/proc/self/exe", folder, sizeof(folder) - 1);
    char *slash;

    if (len > 0) {
        folder[len] = '\0';
        slash = strrchr(folder, '/');
        if (slash)
            *slash = '\0';
        (void)snprintf(out, PATH_MAX, "%s/nginx/" MODULE_NAME, folder);
        if (access(out, R_OK) == 0)
            return true;
    }
    if (configured(folder, sizeof(folder), settings, "--modules-path="))
        (void)snprintf(out, PATH_MAX, "%s/" MODULE_NAME, folder);
    else if (configured(folder, sizeof(folder), settings, "--prefix="))
        (void)snprintf(out, PATH_MAX, "%s/" MODULE_DEFAULT, folder);
    else
        (void)snprintf(out, PATH_MAX, "/usr/local/nginx/" MODULE_DEFAULT);
    return access(out, R_OK) == 0;
}

static enum cli_exit missing(const struct serve_args *args, const char *what, const char *path,
                             const char *advice)
{
    return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "cannot find %s at \"%.300s\": %s",
                    what, path, advice);
}

enum cli_exit serve_nginx_find(struct serve_nginx *nginx, const struct serve_args *args)
{
    char settings[OUTPUT_MAX];
    const char *words[] = {nginx->program, "-V", NULL};

    *nginx = (struct serve_nginx){.master = 0};
    if (args->nginx ? !realpath(args->nginx, nginx->program) || access(nginx->program, X_OK) != 0
                    : !find_program(nginx->program, "nginx"))
        return args->nginx ? missing(args, "nginx", args->nginx, "no program is there")
                           : cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                                      "cannot find nginx in PATH or /usr/sbin: install it, or give "
                                      "--nginx FILE");
    (void)run_once(words, settings, sizeof(settings));
    nginx->version = parse_version(settings);
    if (nginx->version < VERSION_MIN)
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID,
                        nginx->version ? "\"%.300s\" is nginx %u.%u.%u: 1.22 or newer is needed"
                                       : "\"%.300s\" does not say that it is an nginx",
                        nginx->program, nginx->version / 1000000, nginx->version / 1000 % 1000,
                        nginx->version % 1000);
    if (args->module)
        return realpath(args->module, nginx->module) != NULL
                   ? CLI_DONE
                   : missing(args, "the module", args->module, "no file is there");
    if (!find_module(nginx->module, settings))
        return missing(args, "the module", nginx->module,
                       "build it (nginx/build.sh), or give --module FILE");
    return CLI_DONE;
}

/* ---- trying ---------------------------------------------------------------------------------- */

/* Cuts nginx's output to its first message, without the numbers of the process. Returns the line of
 * the configuration that the message names; 0: none. */
static unsigned long first_line(char *output, const char *file)
{
    static const char *const marks[] = {"[emerg] ", "[alert] ", "[crit] "};
    unsigned long number = 0;
    char *line = NULL;
    char *end;

    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]) && !line; i++) {
        line = strstr(output, marks[i]);
        if (line)
            line += strlen(marks[i]);
    }
    if (!line)
        line = output;
    end = line + strspn(line, "0123456789#");
    if (end > line && end[0] == ':' && end[1] == ' ')
        line = end + 2;
    end = line + strcspn(line, "\n");
    *end = '\0';
    for (char *at = strstr(line, " in "); at; at = strstr(at + 1, " in "))
        if (hapax__text_begins(at + 4, file)) {
            number = strtoul(at + 4 + strlen(file) + 1, NULL, 10);
            end = at;
            *end = '\0';
            break;
        }
    memmove(output, line, (size_t)(end - line) + 1);
    return number;
}

/* Whether a directive has the word: as a quoted one, or as a variable, if it is one's name. */
static bool has_word(const char *directive, const char *word, size_t len)
{
    for (const char *at = memmem(directive, strlen(directive), word, len); at;
         at = memmem(at + 1, strlen(at + 1), word, len)) {
        char before = at > directive ? at[-1] : ' ';
        char after = at[len];

        if ((before == '"' && after == '"') || before == '$' || (before == '{' && after == '}'))
            return true;
    }
    return false;
}

/* Finds the option that a message is about: by the line of the configuration or, where nginx names
 * none, by the first quoted word. Before each line that an option made, the configuration has one
 * with the option. False: there is none. */
static bool find_option(char **mark, const char *file, const char *message, unsigned long number)
{
    const char *word = strchr(message, '"');
    size_t word_len = word ? strcspn(++word, "\"") : 0;
    FILE *in = fopen(file, "re");
    char *line = NULL;
    size_t size = 0;
    bool found = false;

    *mark = NULL;
    for (unsigned long at = 1; in && !found && getline(&line, &size, in) >= 0; at++) {
        line[strcspn(line, "\n")] = '\0';
        found = *mark && (number ? at == number : word_len > 0 && has_word(line, word, word_len));
        if (found)
            break;
        free(*mark);
        *mark = hapax__text_begins(line, SERVE_MARK) ? strdup(line + strlen(SERVE_MARK)) : NULL;
    }
    if (in)
        (void)fclose(in);
    free(line);
    if (!found) {
        free(*mark);
        *mark = NULL;
    }
    return found;
}

/* Says it of the option: who has no nginx of their own need not know its directives. The directive
 * of the option's own name is left out. */
static enum cli_exit refuse_option(const struct serve_args *args, char *mark, const char *message)
{
    static const char prefix[] = "\"hapax_", directive[] = "directive ", twice[] = "is duplicate";
    char *value = mark + strcspn(mark, "\t");
    char name[64] = "";

    if (*value == '\t')
        *value++ = '\0';
    if (strncmp(message, "invalid number of arguments", 27) == 0) {
        message = "it has too few words";
    } else if (hapax__text_begins(message, prefix)) {
        const char *at = message + strlen(prefix);
        size_t len = strcspn(at, "\"");

        (void)snprintf(name, sizeof(name), "%.*s ", len < 60 ? (int)len : 0, at);
        for (char *c = name; *c; c++)
            *c = *c == '_' ? '-' : *c;
        if (strncmp(name, mark, len) == 0 && mark[len] == '\0')
            name[0] = '\0';
        message = at + len + strspn(at + len, "\" :");
    }
    if (hapax__text_begins(message, directive))
        message += strlen(directive);
    if (strcmp(message, twice) == 0 || strncmp(message, "conflicting parameter", 21) == 0)
        message = "is given twice";
    return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "--%s \"%.200s\": %s%.600s", mark,
                    value, name, message);
}

enum cli_exit serve_nginx_try(const struct serve_nginx *nginx, const struct serve_args *args,
                              const char *folder)
{
    char output[OUTPUT_MAX];
    char file[PATH_MAX];
    char *mark;
    const char *words[] = {nginx->program, "-t", "-q", "-p",     folder,
                           "-c",           file, "-e", "stderr", NULL};
    unsigned long number;
    enum cli_exit exit;

    (void)snprintf(file, sizeof(file), "%s/nginx.conf", folder);
    if (run_once(words, output, sizeof(output)) == 0)
        return CLI_DONE;
    number = first_line(output, file);
    if (!find_option(&mark, file, output, number))
        return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "nginx refuses to start: %.800s",
                        output[0] ? output : "it could not be run");
    exit = refuse_option(args, mark, output);
    free(mark);
    return exit;
}

enum cli_exit serve_nginx_start(struct serve_nginx *nginx, const struct serve_args *args,
                                const char *folder)
{
    char file[PATH_MAX];
    const char *words[] = {nginx->program, "-p", folder, "-c", file, "-e", "stderr", NULL};
    pid_t parent = getpid();
    pid_t child;

    (void)snprintf(file, sizeof(file), "%s/nginx.conf", folder);
    child = fork();
    if (child < 0)
        return cli_fail(&args->args, CLI_UNREACHED, HAPAX_ERR_NOMEM, "cannot start nginx: %s",
                        strerror(errno));
    if (child == 0) {
        (void)setpgid(0, 0);
        become(words, parent);
    }
    (void)setpgid(child, child); /* whichever of the two comes first */
    nginx->master = child;
    return CLI_DONE;
}

bool serve_nginx_ended(struct serve_nginx *nginx, int *status)
{
    siginfo_t info = {.si_pid = 0};

    assert(nginx->master > 0);
    if (waitid(P_PID, (id_t)nginx->master, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
        info.si_pid == 0)
        return false;
    /* Not reaped yet, so the number of the group cannot be another's. */
    (void)kill(-nginx->master, SIGKILL);
    (void)waitpid(nginx->master, status, 0);
    nginx->master = 0;
    return true;
}

/* ---- the address ----------------------------------------------------------------------------- */

static struct addrinfo *look_up(const struct serve_address *address, int *error)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;

    *error = getaddrinfo(address->host, address->port, &hints, &found);
    return *error == 0 ? found : NULL;
}

/* The port that a socket was given, into an address that asked for any. */
static bool note_port(struct serve_address *address, int fd)
{
    struct sockaddr_storage given;
    socklen_t len = sizeof(given);

    return strcmp(address->port, "0") != 0 ||
           (getsockname(fd, (struct sockaddr *)&given, &len) == 0 &&
            getnameinfo((struct sockaddr *)&given, len, NULL, 0, address->port,
                        sizeof(address->port), NI_NUMERICSERV) == 0);
}

static void set_port(struct addrinfo *at, const char *port)
{
    in_port_t number = htons((uint16_t)strtoul(port, NULL, 10));

    if (at->ai_family == AF_INET6)
        ((struct sockaddr_in6 *)at->ai_addr)->sin6_port = number;
    else
        ((struct sockaddr_in *)at->ai_addr)->sin_port = number;
}

enum cli_exit serve_address_take(struct serve_taken *taken, const struct serve_args *args,
                                 struct serve_address *address)
{
    char text[SERVE_NAME_MAX + 16];
    const int on = 1; /* bind() fails where somebody listens, and not where we hold it for nginx */
    int error;
    struct addrinfo *found = look_up(address, &error);
    const char *why = found ? NULL : gai_strerror(error);

    for (struct addrinfo *at = found; at && !why && taken->n < SERVE_TAKEN_MAX; at = at->ai_next) {
        int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        set_port(at, address->port); /* of several addresses, the first chooses */
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
            (at->ai_family == AF_INET6 &&
             setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) != 0) ||
            bind(fd, at->ai_addr, at->ai_addrlen) != 0 || !note_port(address, fd))
            why = errno == EADDRINUSE ? "the port is taken" : strerror(errno);
        if (fd >= 0)
            taken->fds[taken->n++] = fd;
    }
    if (found)
        freeaddrinfo(found);
    if (!why)
        return CLI_DONE;
    serve_address_release(taken);
    serve_address_text(text, address);
    return cli_fail(&args->args, CLI_USAGE, HAPAX_ERR_INVALID, "cannot listen at \"%s\": %s", text,
                    why);
}

void serve_address_release(struct serve_taken *taken)
{
    for (size_t i = 0; i < taken->n; i++)
        close(taken->fds[i]);
    taken->n = 0;
}

bool serve_address_accepts(const struct serve_address *address)
{
    int error;
    struct addrinfo *found = look_up(address, &error);
    bool accepts = false;

    if (found) {
        int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        accepts = fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0;
        if (fd >= 0)
            close(fd);
        freeaddrinfo(found);
    }
    return accepts;
}
