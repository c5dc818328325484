/* What libc_faults.c says of itself to the watch over calls, which finds it by dlsym. */
#ifndef LIBC_FAULTS_H
#define LIBC_FAULTS_H

#include <stdbool.h>

/* Calls that were made to fail. */
unsigned long long libc_faults_fired(void);

/* No call fails any more. */
void libc_faults_disarm(void);

#endif /* LIBC_FAULTS_H */
