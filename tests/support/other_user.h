#pragma once
// Work that runs as another user of this host, in a process of its own.

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>
#include <functional>
#include <string>

namespace trireme::test {

inline constexpr uid_t kOtherUser = 65534;

/// Runs `work` as that user. Returns its result or the text of its exception. If the process dies, an
/// expectation fails. Needs root.
inline std::string as_user(uid_t user, const std::function<std::string()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::string said = "cannot become the other user";
    if (::setgroups(0, nullptr) == 0 && ::setresgid(user, user, user) == 0 &&
        ::setresuid(user, user, user) == 0) {
      try {
        said = work();
      } catch (const std::exception& error) {
        said = error.what();
      }
    }
    [[maybe_unused]] const auto written = ::write(ends[1], said.data(), said.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  char bytes[4096];
  for (ssize_t got = 0; (got = ::read(ends[0], bytes, sizeof bytes)) > 0 || (got < 0 && errno == EINTR);)
    if (got > 0) said.append(bytes, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "the process of the other user has died";
  return said;
}

}  // namespace trireme::test

#define SKIP_UNLESS_ROOT() \
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user"
