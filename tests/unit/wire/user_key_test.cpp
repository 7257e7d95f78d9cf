// The key by which processes of one user authenticate: its location, its creation, and rejected files.

#include "trireme/wire/user_key.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "tests/support/other_user.h"
#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::wire {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// A state folder for this test only.
class SecurityUserKey : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("XDG_STATE_HOME", state_.c_str(), 1);
    ::setenv("HOME", home_.c_str(), 1);
  }

  const test::TemporaryFolder folder_;
  const fs::path state_ = folder_ / "state", home_ = folder_ / "home";
  const fs::path place_ = state_ / "trireme", file_ = place_ / "user.key";
};

mode_t mode_of(const fs::path& path) {
  struct stat found {};
  return ::lstat(path.c_str(), &found) == 0 ? found.st_mode & 07777 : 0;
}

TEST_F(SecurityUserKey, IsCreatedOnceForThisUserOnly) {
  ::umask(0);
  const Secret key = user_key();
  EXPECT_EQ(key.reveal().size(), 64u);
  EXPECT_EQ(user_key().reveal(), key.reveal());
  EXPECT_EQ(mode_of(place_), 0700u);
  EXPECT_EQ(mode_of(file_), 0600u);
}

TEST_F(SecurityUserKey, ThatManyMakeAtOnceIsOne) {
  std::vector<std::future<std::string>> keys;
  for (int i = 0; i < 16; ++i)
    keys.push_back(std::async(std::launch::async, [] { return user_key().reveal(); }));
  const std::string first = user_key().reveal();
  for (auto& key : keys) EXPECT_EQ(key.get(), first);
  EXPECT_EQ(std::distance(fs::directory_iterator(place_), fs::directory_iterator()), 1);
}

TEST_F(SecurityUserKey, RejectsKeyOthersMayReadWithAdvice) {
  user_key();
  for (const mode_t mode : {0640, 0604, 0660, 0602}) {
    ::chmod(file_.c_str(), mode);
    EXPECT_THAT(user_key, ThrowsMessage<InvalidArgument>(HasSubstr("chmod 600 " + file_.string())));
  }
  ::chmod(file_.c_str(), 0600);
  ::chmod(place_.c_str(), 0750);
  EXPECT_THAT(user_key, ThrowsMessage<InvalidArgument>(HasSubstr("chmod 700 " + place_.string())));
}

TEST_F(SecurityUserKey, RejectsLinkOrNonFile) {
  user_key();
  fs::rename(file_, place_ / "elsewhere");
  fs::create_symlink(place_ / "elsewhere", file_);
  EXPECT_THAT(user_key, ThrowsMessage<InvalidArgument>(HasSubstr(file_.string())));
  fs::remove(file_);
  ASSERT_EQ(::mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THAT(user_key, ThrowsMessage<InvalidArgument>(HasSubstr(file_.string())));
}

TEST_F(SecurityUserKey, RejectsTruncatedKeyWithItsPlace) {
  user_key();
  fs::resize_file(file_, 10);
  EXPECT_THAT(user_key, ThrowsMessage<InvalidArgument>(HasSubstr(file_.string() + " has 10 characters")));
}

TEST_F(SecurityUserKey, IsInHomeFolderByDefault) {
  fs::create_directory(home_);
  for (const char* none : {"", "relative"}) {
    ::setenv("XDG_STATE_HOME", none, 1);
    const std::string key = user_key().reveal();
    EXPECT_EQ(read_file(home_ / ".local/state/trireme/user.key"), key + "\n");
  }
}

TEST_F(SecurityUserKey, IsNotInFolderOfAnotherUser) {
  SKIP_UNLESS_ROOT();
  fs::create_directories(place_);
  fs::permissions(place_, fs::perms(0700));
  fs::create_directory(home_);
  fs::permissions(folder_.path(), fs::perms(0755));
  const auto key = [] { return user_key().reveal(); };
  const std::string theirs = test::as_user(test::kOtherUser, key);
  EXPECT_EQ(theirs.size(), 64u) << theirs;
  EXPECT_EQ(test::as_user(test::kOtherUser, key), theirs);
  EXPECT_NE(user_key().reveal(), theirs);
  EXPECT_TRUE(fs::is_empty(home_));
}

TEST_F(SecurityUserKey, RejectsPlaceTakenByAnotherUser) {
  SKIP_UNLESS_ROOT();
  constexpr uid_t kWithoutHome = 61234;
  const fs::path taken = "/tmp/trireme-" + std::to_string(kWithoutHome);
  fs::create_directory(taken);
  fs::permissions(taken, fs::perms(0777));
  EXPECT_THAT(test::as_user(kWithoutHome, [] { return user_key().reveal(); }),
              AllOf(HasSubstr(taken.string() + " belongs to user 0"), HasSubstr("--secret-file")));
  fs::remove_all(taken);
}

}  // namespace
}  // namespace trireme::wire
