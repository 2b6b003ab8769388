/* SPDX-License-Identifier: Apache-2.0
 *
 * A server's place in the file system: its socket file, and which peers may connect to it.
 */
#ifndef HAPAX_BASE_SOCKET_H
#define HAPAX_BASE_SOCKET_H

#include <hapax/hapax.h>
#include <sys/types.h>
#include <sys/un.h>

/* Fills in the address. INVALID: the path is empty or too long; text names the limit. */
enum hapax_error hapax__socket_address(struct sockaddr_un *out, const char *path,
                                       char text[HAPAX_TEXT_MAX]);

struct hapax__socket {
    int fd; /* listens; does not block, is closed on exec */
    struct sockaddr_un address;
    dev_t dev; /* of the file: another process may have replaced it */
    ino_t ino;
    bool grouped;
    gid_t gid; /* whose members may connect, if grouped */
};

struct hapax__socket_options {
    const char *path;
    unsigned mode; /* of the file; 0: 0600, with a group 0660 */
    const char *group; /* name or number of the group whose members may connect; NULL: none */
    const char *server; /* what listens there, in texts: "keeper" */
};

/* The mode of a socket's file, by what was asked for. */
static inline unsigned hapax__socket_mode(unsigned mode, const char *group)
{
    return mode ? mode : group ? 0660 : 0600;
}

/* The group of this name, or of this number where no group has the name. False: there is none, or
 * no memory to look for it. */
HAPAX__SHARED bool hapax__socket_group(const char *name, gid_t *gid);

/* Listens. The file never has more permissions than at the end, and no peer gets in before it
 * has them. REFUSED: another process answers there; text has its pid. INVALID: the path is too
 * long, or is no socket; there is no such group. UNAVAILABLE: cannot listen there; text says why.
 * Then nothing is left behind. */
enum hapax_error hapax__socket_open(struct hapax__socket *out,
                                    const struct hapax__socket_options *options,
                                    char text[HAPAX_TEXT_MAX]);

/* Removes the file, if it is still this socket's, and then closes the socket: in this order no
 * successor's file is removed. */
void hapax__socket_close(struct hapax__socket *socket);

enum hapax__right {
    HAPAX__RIGHT_NONE, /* may not come in */
    HAPAX__RIGHT_DOOR, /* a member of the group: runs operations of its own, and sees no others */
    HAPAX__RIGHT_ALL /* root, and the user of this process */
};

/* What the peer at the other end of fd may do, by the kernel's word; *uid is its user. */
enum hapax__right hapax__socket_right(const struct hapax__socket *socket, int fd, uid_t *uid);

/* The process at the other end; 0: not known. */
pid_t hapax__socket_peer(int fd);

/* An errno in the words of our texts: the system's own texts have capitals. Valid until this
 * thread's next call. */
const char *hapax__socket_reason(int error);

#endif
