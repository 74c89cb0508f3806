/* What each sanitizer must find: with the argument "memory" a write behind the end, with "threads" a race. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static int shared;

static void* count(void* unused) {
  for (int turn = 0; turn < 1000; ++turn)
    ++shared;
  return unused;
}

int main(int argc, char** argv) {
  pthread_t other;
  if (argc < 2)
    return 1;
  if (strcmp(argv[1], "memory") == 0) {
    volatile char* block = malloc(8);
    block[8] = 1;
    return 0;
  }
  pthread_create(&other, NULL, count, NULL);
  count(NULL);
  pthread_join(other, NULL);
  return 0;
}
