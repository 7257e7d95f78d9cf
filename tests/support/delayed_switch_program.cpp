// delayed_switch NAME HOSTS DELAY_MS MBIT_PER_S: runs the switch of delayed_switch.h until a signal ends it.

#include <pthread.h>
#include <signal.h>

#include <cstdio>
#include <exception>
#include <string>

#include "tests/support/delayed_switch.h"

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: delayed_switch NAME HOSTS DELAY_MS MBIT_PER_S\n", stderr);
    return 2;
  }
  sigset_t ends;
  sigemptyset(&ends);
  for (const int each : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, each);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  try {
    const trireme::test::DelayedSwitch runs({.name = argv[1],
                                             .num_hosts = std::stoi(argv[2]),
                                             .delay_s = std::stod(argv[3]) / 1e3,
                                             .bits_per_s = std::stod(argv[4]) * 1e6});
    std::puts("ready");
    std::fflush(stdout);
    int signal = 0;
    sigwait(&ends, &signal);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
