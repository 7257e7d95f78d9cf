#include "trireme/etcd/store_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/error.h"
#include "trireme/base/random.h"
#include "trireme/etcd/internal/base64.h"

namespace trireme::etcd {
namespace {

using testing::HasSubstr;

TEST(StoreAddress, NamesMembersAndAPrefix) {
  const auto address = StoreAddress::parse("etcd://10.0.0.1:2379,[::1]:2380,etcd.lab:99/jobs/one/");
  ASSERT_EQ(address.members.size(), 3u);
  EXPECT_EQ(address.members[0].text(), "10.0.0.1:2379");
  EXPECT_EQ(address.members[1].host, "::1");
  EXPECT_EQ(address.members[2].port, 99);
  EXPECT_EQ(address.prefix, "jobs/one");
  EXPECT_EQ(address.text(), "etcd://10.0.0.1:2379,[::1]:2380,etcd.lab:99/jobs/one");
  EXPECT_EQ(StoreAddress::parse("etcd://h:1").prefix, "trireme");
}

TEST(StoreAddress, RejectsInvalidAddressWithReason) {
  const auto refusal = [](const std::string& address) -> std::string {
    try {
      StoreAddress::parse(address);
      return "taken";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  };
  EXPECT_THAT(refusal("etcds://h:1/x"), HasSubstr("TLS is not supported"));
  EXPECT_THAT(refusal("etcd://me:secret@h:1/x"), HasSubstr("users and passwords"));
  EXPECT_THAT(refusal("etcd://me:secret@h:1/x"), testing::Not(HasSubstr("secret")));
  EXPECT_THAT(refusal("tcp:h:1"), HasSubstr("etcd://HOST:PORT"));
  EXPECT_THAT(refusal("etcd://h/x"), HasSubstr("etcd://HOST:PORT"));
  EXPECT_THAT(refusal("etcd://h:1,,h:2/x"), HasSubstr("member ''"));
  EXPECT_THAT(refusal("etcd:///x"), HasSubstr("member ''"));
  EXPECT_THAT(refusal("etcd://h:1/a b"), HasSubstr("prefix"));
}

TEST(Base64, BringsBackAllBytes) {
  EXPECT_EQ(to_base64("foobar"), "Zm9vYmFy");  // RFC 4648, section 10
  EXPECT_EQ(to_base64("fooba"), "Zm9vYmE=");
  EXPECT_EQ(to_base64("foob"), "Zm9vYg==");
  EXPECT_EQ(to_base64(""), "");
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    std::string bytes(random.below(50), '\0');
    for (char& each : bytes) each = static_cast<char>(random.below(256));
    ASSERT_EQ(from_base64(to_base64(bytes)), bytes);
  }
  for (const std::string no : {"abc", "ab=c", "a===", "ab!d", "====", "Zm9v\n"})
    EXPECT_EQ(from_base64(no), std::nullopt) << no;
}

}  // namespace
}  // namespace trireme::etcd
