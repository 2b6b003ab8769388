/* SPDX-License-Identifier: Apache-2.0
 *
 * A server's socket file. A path has one living server at most. A server that finds a file there
 * tries to connect, and replaces the file only where nobody listens. It locks the directory
 * meanwhile, against other servers that do the same. The lock is flock() on the directory itself,
 * so that no lock file is left behind. Rejected: a rename over the path, which needs no lock. It
 * would push a living server off its path when two start at once.
 *
 * Permissions: bind() makes the file with the mode of the socket's own inode less the umask, so
 * that mode is set first (umask() belongs to all threads of the process). The final mode and group
 * are set before listen(): until then every connect is refused.
 */
#include "socket.h"

#include "fail.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define BACKLOG        512
#define LOCK_WAIT_MS   2000
#define LOCK_PAUSE_MS  10
#define GROUPS_MAX     65536u
#define GROUP_LINE_MIN ((size_t)4 << 10)
#define GROUP_LINE_MAX ((size_t)4 << 20)
#define PATH_LEN_MAX   (sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1)

enum hapax_error hapax__socket_address(struct sockaddr_un *out, const char *path,
                                       char text[HAPAX_TEXT_MAX])
{
    size_t len = path ? strlen(path) : 0;

    memset(out, 0, sizeof(*out));
    if (len == 0)
        return hapax__fail(text, HAPAX_ERR_INVALID, "the socket's path is empty (unix:PATH)");
    if (len > PATH_LEN_MAX)
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "the socket's path \"%.60s...\" has %zu bytes, over the limit of %zu",
                           path, len, PATH_LEN_MAX);
    out->sun_family = AF_UNIX;
    memcpy(out->sun_path, path, len + 1);
    return HAPAX_ERR_NONE;
}

pid_t hapax__socket_peer(int fd)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 || len != sizeof(peer))
        return 0;
    return peer.pid;
}

const char *hapax__socket_reason(int error)
{
    switch (error) {
    case ENOENT:
        return "there is no such file";
    case ECONNREFUSED:
        return "nobody listens there";
    case EACCES:
    case EPERM:
        return "no permission";
    case ECONNRESET:
    case EPIPE:
        return "the connection was lost";
    default:
        return strerror(error);
    }
}

/* ---- who may come in ----------------------------------------------------------------- */

static bool in_groups(int fd, gid_t gid)
{
    socklen_t len = 0;
    gid_t *groups;
    bool found = false;

    /* The first call fails with ERANGE and gives the length of the list. */
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &len) == 0 || errno != ERANGE)
        return false;
    if (len > GROUPS_MAX * sizeof(*groups))
        return false;
    groups = malloc(len);
    if (!groups)
        return false;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len) == 0)
        for (size_t i = 0; i < len / sizeof(*groups); i++)
            found |= groups[i] == gid;
    free(groups);
    return found;
}

enum hapax__right hapax__socket_right(const struct hapax__socket *socket, int fd, uid_t *uid)
{
    struct ucred peer;
    socklen_t len = sizeof(peer);

    *uid = (uid_t)-1;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0 || len != sizeof(peer))
        return HAPAX__RIGHT_NONE;
    *uid = peer.uid;
    if (peer.uid == geteuid() || peer.uid == 0)
        return HAPAX__RIGHT_ALL;
    if (socket->grouped && (peer.gid == socket->gid || in_groups(fd, socket->gid)))
        return HAPAX__RIGHT_DOOR;
    return HAPAX__RIGHT_NONE;
}

bool hapax__socket_group(const char *name, gid_t *gid)
{
    struct group entry, *found = NULL;
    unsigned long number;
    char *end;

    for (size_t size = GROUP_LINE_MIN; size <= GROUP_LINE_MAX && !found; size *= 2) {
        char *buffer = malloc(size);
        int error = buffer ? getgrnam_r(name, &entry, buffer, size, &found) : ENOMEM;

        free(buffer);
        if (error != ERANGE)
            break;
    }
    if (found) {
        *gid = found->gr_gid;
        return true;
    }
    errno = 0;
    number = strtoul(name, &end, 10);
    *gid = (gid_t)number;
    return name[0] >= '0' && name[0] <= '9' && *end == '\0' && errno == 0 && number < (gid_t)-1;
}

static enum hapax_error find_group(struct hapax__socket *socket, const char *name,
                                   char text[HAPAX_TEXT_MAX])
{
    socket->grouped = name != NULL;
    if (!name || hapax__socket_group(name, &socket->gid))
        return HAPAX_ERR_NONE;
    return hapax__fail(text, HAPAX_ERR_INVALID, "there is no group \"%.64s\"", name);
}

/* ---- the file ------------------------------------------------------------------------ */

static enum hapax_error cannot(const char *path, const char *what, char text[HAPAX_TEXT_MAX])
{
    int error = errno;

    return hapax__fail(text, HAPAX_ERR_UNAVAILABLE, "cannot listen at \"%.110s\": %s: %s", path,
                       what, hapax__socket_reason(error));
}

/* Locks the directory the path lies in. Returns a descriptor to close, or -1 with text set. */
static int lock_directory(const char *path, char text[HAPAX_TEXT_MAX])
{
    char directory[PATH_LEN_MAX + 1] = ".";
    const char *slash = strrchr(path, '/');
    int fd;

    if (slash) {
        size_t len = slash == path ? 1 : (size_t)(slash - path);

        memcpy(directory, path, len);
        directory[len] = '\0';
    }
    fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        cannot(path, "cannot open its directory", text);
        return -1;
    }
    for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; waited += LOCK_PAUSE_MS) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || waited >= LOCK_WAIT_MS) {
            cannot(path, "cannot lock its directory", text);
            close(fd);
            return -1;
        }
        poll(NULL, 0, LOCK_PAUSE_MS);
    }
    return fd;
}

static enum hapax_error refuse(const struct hapax__socket_options *options, pid_t pid,
                               char text[HAPAX_TEXT_MAX])
{
    if (pid > 0)
        return hapax__fail(text, HAPAX_ERR_REFUSED,
                           "cannot listen at \"%.110s\": the %s of process %ld answers there",
                           options->path, options->server, (long)pid);
    return hapax__fail(text, HAPAX_ERR_REFUSED,
                       "cannot listen at \"%.110s\": another %s answers there", options->path,
                       options->server);
}

/* Removes a socket file that nobody listens on. A file that is no socket stays. */
static enum hapax_error clear_path(const struct sockaddr_un *address,
                                   const struct hapax__socket_options *options,
                                   char text[HAPAX_TEXT_MAX])
{
    const char *path = address->sun_path;
    struct stat file;
    enum hapax_error error = HAPAX_ERR_NONE;
    int fd;

    if (lstat(path, &file) != 0)
        return errno == ENOENT ? HAPAX_ERR_NONE : cannot(path, "cannot look at it", text);
    if (!S_ISSOCK(file.st_mode))
        return hapax__fail(text, HAPAX_ERR_INVALID,
                           "cannot listen at \"%.110s\": there is a file that is no socket", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return cannot(path, "no socket", text);
    if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
        error = refuse(options, hapax__socket_peer(fd), text);
    else if (errno == EAGAIN) /* alive, with a full backlog */
        error = refuse(options, 0, text);
    else if (errno != ECONNREFUSED && errno != ENOENT)
        error = cannot(path, "cannot tell if it is in use", text);
    else if (unlink(path) != 0 && errno != ENOENT)
        error = cannot(path, "cannot remove the stale socket", text);
    close(fd);
    return error;
}

static enum hapax_error dress(struct hapax__socket *socket, unsigned mode,
                              char text[HAPAX_TEXT_MAX])
{
    const char *path = socket->address.sun_path;
    struct stat file;

    if (socket->grouped && lchown(path, (uid_t)-1, socket->gid) != 0)
        return cannot(path, "cannot give it to the group", text);
    if (chmod(path, (mode_t)mode) != 0)
        return cannot(path, "cannot set its mode", text);
    if (lstat(path, &file) != 0)
        return cannot(path, "cannot look at it", text);
    socket->dev = file.st_dev;
    socket->ino = file.st_ino;
    if (listen(socket->fd, BACKLOG) != 0)
        return cannot(path, "no connections", text);
    return HAPAX_ERR_NONE;
}

/* With the directory locked. */
static enum hapax_error occupy(struct hapax__socket *out,
                               const struct hapax__socket_options *options, unsigned mode,
                               char text[HAPAX_TEXT_MAX])
{
    const char *path = out->address.sun_path;
    enum hapax_error error = clear_path(&out->address, options, text);

    if (error != HAPAX_ERR_NONE)
        return error;
    out->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (out->fd < 0)
        return cannot(path, "no socket", text);
    if (fchmod(out->fd, 0600) != 0 ||
        bind(out->fd, (const struct sockaddr *)&out->address, sizeof(out->address)) != 0) {
        error = cannot(path, "cannot make the socket", text);
        close(out->fd);
        return error;
    }
    error = dress(out, mode, text);
    if (error != HAPAX_ERR_NONE) {
        unlink(path);
        close(out->fd);
    }
    return error;
}

enum hapax_error hapax__socket_open(struct hapax__socket *out,
                                    const struct hapax__socket_options *options,
                                    char text[HAPAX_TEXT_MAX])
{
    unsigned mode = hapax__socket_mode(options->mode, options->group);
    enum hapax_error error;
    int lock;

    memset(out, 0, sizeof(*out));
    out->fd = -1;
    if (mode & ~0777u)
        return hapax__fail(text, HAPAX_ERR_INVALID, "mode %#o is not between 0 and 0777", mode);
    error = hapax__socket_address(&out->address, options->path, text);
    if (error == HAPAX_ERR_NONE)
        error = find_group(out, options->group, text);
    if (error != HAPAX_ERR_NONE)
        return error;
    lock = lock_directory(out->address.sun_path, text);
    if (lock < 0)
        return HAPAX_ERR_UNAVAILABLE;
    error = occupy(out, options, mode, text);
    flock(lock, LOCK_UN); /* a fork of another thread may hold a copy of the descriptor */
    close(lock);
    if (error != HAPAX_ERR_NONE)
        out->fd = -1;
    return error;
}

void hapax__socket_close(struct hapax__socket *socket)
{
    struct stat file;

    assert(socket->fd >= 0);
    if (lstat(socket->address.sun_path, &file) == 0 && file.st_dev == socket->dev &&
        file.st_ino == socket->ino)
        unlink(socket->address.sun_path);
    close(socket->fd);
    socket->fd = -1;
}
