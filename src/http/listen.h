/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HAPAX_HTTP_LISTEN_H
#define HAPAX_HTTP_LISTEN_H

#include <hapax/hapax.h>

struct hapax__http_place {
    const char *address; /* HOST:PORT; port 0 takes any */
    const char *what; /* begins the text of a failure */
    bool anywhere; /* also where other machines reach it */
    const char *allows; /* for the text: what allows `anywhere` */
};

/* Opens a listening socket. *port is the port in use. *fd is the caller's to close. INVALID,
 * UNAVAILABLE (the port is taken). */
enum hapax_error hapax__http_listen(int *fd, uint16_t *port, const struct hapax__http_place *place,
                                    char text[HAPAX_TEXT_MAX]);

#endif
