#include "trireme/wire/secret.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "trireme/base/error.h"

namespace trireme::wire {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string hex(const Digest& digest) {
  std::string result;
  char two[3];
  for (const auto byte : digest) {
    std::snprintf(two, sizeof two, "%02x", byte);
    result += two;
  }
  return result;
}

// Test cases 3 and 6 of RFC 4231 have keys of 20 and 131 bytes: shorter and longer than the block of SHA-256.
TEST(Hmac, GivesTheValuesOfRfc4231) {
  const auto key = [](std::size_t bytes) {
    return Secret::from_text(std::string(bytes, '\xaa'), "the test");
  };
  EXPECT_EQ(hex(hmac_sha256(key(20), {std::string(20, '\xdd'), "", std::string(30, '\xdd')})),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hex(hmac_sha256(key(131), {"Test Using Larger Than Block-Size Key - Hash Key First"})),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Secret, ServerSecretPrecedesThatOfJob) {
  std::map<std::string, std::string> variables;
  const auto found = [&] {
    return Secret::of_servers([&](const std::string& name) {
             const auto value = variables.find(name);
             return value == variables.end() ? std::nullopt : std::optional(value->second);
           })
        .reveal();
  };
  EXPECT_EQ(found(), "");
  variables["TRIREME_SECRET"] = std::string(32, 'j');
  EXPECT_EQ(found(), std::string(32, 'j'));
  variables["TRIREME_PS_SECRET"] = std::string(32, 's');
  EXPECT_EQ(found(), std::string(32, 's'));
}

TEST(Secret, IsDifferentForEachDraw) {
  EXPECT_EQ(Secret::random().reveal().size(), 64u);
  EXPECT_NE(Secret::random().reveal(), Secret::random().reveal());
}

TEST(Secret, RejectsTooShortOneWithSource) {
  EXPECT_THAT([] { Secret::from_text(" 123456789012345 \n", "TRIREME_SECRET"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("TRIREME_SECRET has 15 characters")));
}

TEST(Secret, HasIndependentKeyForEachRole) {
  const Secret whole = Secret::from_text("the secret of this job", "the test");
  const Secret key = whole.of_role("worker.3");
  EXPECT_EQ(key.role(), "worker.3");
  EXPECT_EQ(key.reveal(), whole.of_role("worker.3").reveal());
  EXPECT_NE(key.reveal().substr(key.reveal().size() - 64),
            whole.of_role("worker.4").reveal().substr(key.reveal().size() - 64));
  EXPECT_EQ(key.of_role("worker.4").reveal(), key.reveal()) << "no other is made from it";
  EXPECT_EQ(whole.of_peer(".").reveal(), whole.reveal());
  const Secret read = Secret::from_text(" " + key.reveal() + "\n", "the test");
  EXPECT_EQ(read.role(), "worker.3");
  EXPECT_EQ(read.reveal(), key.reveal());
  const std::string text = key.reveal();
  const std::vector<std::string> damages = {text + "0", "trireme-key:worker.3",
                                            "trireme-key:worker:" + std::string(64, '0'),
                                            text.substr(0, text.size() - 1) + "g"};
  for (const std::string& damaged : damages) {
    EXPECT_THAT([&] { Secret::from_text(damaged, "F"); },
                ThrowsMessage<InvalidArgument>(HasSubstr("the key of a role in F is damaged")))
        << damaged;
  }
}

TEST(SecretFile, HoldsTheSecretAndItsLineEnd) {
  const test::TemporaryFolder folder;
  const auto path = folder / "secret";
  std::ofstream(path) << "sixteen-and-more-characters\n";
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  EXPECT_EQ(Secret::from_file(path).reveal(), "sixteen-and-more-characters");
}

TEST(SecuritySecretFile, RejectsFileOthersCanAccess) {
  const test::TemporaryFolder folder;
  const auto path = folder / "secret";
  std::ofstream(path) << "sixteen-and-more-characters\n";
  for (const int mode : {0644, 0640, 0604, 0620, 0602, 0610, 0660}) {
    std::filesystem::permissions(path, std::filesystem::perms(mode));
    EXPECT_THAT([&] { Secret::from_file(path); },
                ThrowsMessage<InvalidArgument>(HasSubstr("chmod 600 " + path.string())))
        << mode;
  }
  std::filesystem::permissions(path, std::filesystem::perms(0400));
  EXPECT_EQ(Secret::from_file(path).reveal(), "sixteen-and-more-characters");
}

TEST(SecuritySecretFile, ThatBelongsToAnotherUserIsRejected) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const test::TemporaryFolder folder;
  const auto path = folder / "secret";
  std::ofstream(path) << "sixteen-and-more-characters\n";
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
  EXPECT_THAT([&] { Secret::from_file(path); },
              ThrowsMessage<InvalidArgument>(HasSubstr(path.string() + " belongs to user 65534")));
  EXPECT_THAT([&] { require_owners_file(path, "the key of the certificate"); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the key of the certificate in " + path.string())));
}

TEST(SecretFile, MissingFileIsUsageError) {
  EXPECT_THAT([] { Secret::from_file("/no/such"); }, ThrowsMessage<InvalidArgument>(HasSubstr("/no/such")));
}

}  // namespace
}  // namespace trireme::wire
