#include "trireme/etcd/internal/disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/etcd_cluster.h"
#include "tests/support/relay.h"
#include "trireme/etcd/internal/keys.h"
#include "trireme/etcd/store_address.h"

namespace trireme::etcd {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::byte> bytes(const std::string& text) {
  const auto all = std::as_bytes(std::span(text));
  return {all.begin(), all.end()};
}

/// Bytes in which no two parts are equal.
std::vector<std::byte> large(std::size_t size) {
  std::vector<std::byte> result(size);
  for (std::size_t i = 0; i < size; ++i) result[i] = static_cast<std::byte>(i ^ i >> 8 ^ i >> 16);
  return result;
}

class EtcdDisk : public testing::Test {
 protected:
  void SetUp() override {
    TRIREME_NEEDS_ETCD();
    etcd_ = std::make_unique<test::EtcdCluster>(1);
    store_ = StoreAddress::parse(etcd_->address());
  }

  /// With a long timeout, because etcd's disk may be slow when other tests run.
  Client client() const { return Client(store_.members, 30); }
  std::string leader() const { return leader_key(store_.prefix); }

  /// Takes over from the current leader, as after the end of its lease.
  std::shared_ptr<Term> next_term() {
    Client asking = client();
    asking.commit({.when = {}, .writes = {}, .removals = {{.first = leader(), .end = {}}}});
    const LeaseId lease = asking.grant(60);
    const Outcome made = asking.commit(
        {.when = {}, .writes = {{.key = leader(), .value = "x", .lease = lease}}, .removals = {}});
    return std::make_shared<Term>(leader(), made.revision, lease, now_ns() + 60'000'000'000);
  }
  Disk disk(std::shared_ptr<Term> term) const { return {client(), store_.prefix, std::move(term)}; }

  /// All keys, to check the remains.
  std::vector<std::string> keys(const std::string& below) const {
    Client asking = client();
    std::vector<std::string> result;
    for (const KeyValue& each : asking.list(store_.prefix + below, end_of(store_.prefix + below), 1000).pairs)
      result.push_back(each.key);
    return result;
  }

  std::unique_ptr<test::EtcdCluster> etcd_;
  StoreAddress store_;
};

TEST_F(EtcdDisk, NextLeaderReadsSyncedData) {
  {
    Disk first = disk(next_term());
    first.append("log", bytes("one"));
    first.sync("log");
    first.append("log", bytes("two"));
    first.append("log", bytes("three"));
    EXPECT_EQ(first.read("log"), bytes("onetwothree"));
    first.sync("log");
    first.append("log", bytes("not synced"));
    first.replace("snapshot", bytes("s"));
    first.replace("snapshot", {});
  }
  Disk second = disk(next_term());
  EXPECT_EQ(second.read("log"), bytes("onetwothree"));
  EXPECT_EQ(second.read("snapshot"), bytes(""));
  EXPECT_EQ(second.read("nothing"), std::nullopt);
  EXPECT_THAT(second.names(), ElementsAre("log", "snapshot"));
  second.append("log", bytes("four"));
  second.sync("log");
  EXPECT_EQ(second.read("log"), bytes("onetwothreefour"));
  second.remove("log");
  EXPECT_EQ(second.read("log"), std::nullopt);
  EXPECT_THAT(second.names(), ElementsAre("snapshot"));
  EXPECT_THAT(keys("/parts/log"), testing::IsEmpty());
}

TEST_F(EtcdDisk, ADeposedLeaderWritesNothing) {
  const auto old_term = next_term();
  Disk old_disk = disk(old_term);
  old_disk.replace("map", bytes("old"));
  old_disk.append("log", bytes("a"));
  old_disk.sync("log");
  const auto term = next_term();
  EXPECT_TRUE(old_term->holds()) << "it has not heard of the other";
  Disk now = disk(term);
  now.replace("map", bytes("new"));

  old_disk.append("log", bytes("b"));
  EXPECT_THROW(old_disk.sync("log"), NotNow);
  EXPECT_FALSE(old_term->holds()) << "it has been told now";
  EXPECT_THROW(old_disk.replace("map", bytes("older")), NotNow);
  EXPECT_THROW(old_disk.replace("map", large(3 << 20)), NotNow);
  EXPECT_THROW(old_disk.replace("other", bytes("older")), NotNow);
  EXPECT_THROW(old_disk.remove("map"), NotNow);
  EXPECT_EQ(now.read("map"), bytes("new"));
  EXPECT_EQ(now.read("log"), bytes("a"));
  EXPECT_THAT(now.names(), ElementsAre("log", "map"));
  EXPECT_EQ(keys("/parts/map").size(), 1u) << "nor has it left anything behind";
}

TEST_F(EtcdDisk, FilesLargerThanARequestSurvive) {
  const auto file = large((5 << 20) + 123), more = large((2 << 20) + 7);
  Disk first = disk(next_term());
  first.replace("map", bytes("small"));
  first.replace("map", file);
  first.append("map", more);
  first.sync("map");
  Disk second = disk(next_term());
  auto both = file;
  both.insert(both.end(), more.begin(), more.end());
  EXPECT_TRUE(second.read("map") == both);
  EXPECT_EQ(keys("/parts/map").size(), 9u);
  second.replace("map", bytes("small again"));
  EXPECT_EQ(keys("/parts/map").size(), 1u) << "what nobody names is removed";
}

TEST_F(EtcdDisk, PartsThatAreMissingAreADamage) {
  Disk first = disk(next_term());
  first.replace("map", large(3 << 20));
  Client operator_of_etcd = client();
  operator_of_etcd.commit(
      {.when = {}, .writes = {}, .removals = {{.first = keys("/parts/map")[1], .end = {}}}});
  try {
    first.read("map");
    FAIL() << "read what is not there";
  } catch (const NotNow&) {
    FAIL() << "it will not come back";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), HasSubstr("names 3 parts"));
  }
}

TEST_F(EtcdDisk, PartsOfOtherLengthsAreADamage) {
  Disk first = disk(next_term());
  first.replace("map", large(3 << 20));
  Client operator_of_etcd = client();
  operator_of_etcd.commit(
      {.when = {}, .writes = {{.key = keys("/parts/map")[1], .value = "short"}}, .removals = {}});
  EXPECT_THAT([&] { first.read("map"); },
              testing::ThrowsMessage<DataError>(HasSubstr("names 3 parts of 3145728 bytes, and 3 of ")));
}

TEST_F(EtcdDisk, LateRequestOfHungMemberIsHarmless) {
  const int etcd = store_.members[0].port;
  // It reports the head and then accepts the write.
  test::Relay hangs(etcd, 1, test::Relay::Passes::kWhenTold);
  Disk writes(Client({{.host = "127.0.0.1", .port = hangs.port()}, store_.members[0]}, 3), store_.prefix,
              next_term());
  writes.append("log", bytes("a"));
  writes.sync("log");
  writes.append("log", bytes("b"));
  writes.sync("log");
  EXPECT_THAT(hangs.pass(), HasSubstr("200 OK"));
  EXPECT_EQ(writes.read("log"), bytes("ab"));
}

TEST_F(EtcdDisk, UnconfirmedWriteCountsOnce) {
  const int etcd = store_.members[0].port;
  test::Relay says_nothing(etcd, 1, test::Relay::Passes::kAtOnce);
  Disk writes(Client({{.host = "127.0.0.1", .port = says_nothing.port()}, store_.members[0]}, 3),
              store_.prefix, next_term());
  writes.append("log", bytes("a"));
  writes.sync("log");
  writes.append("log", bytes("b"));
  writes.sync("log");
  EXPECT_EQ(writes.read("log"), bytes("ab"));
}

TEST_F(EtcdDisk, UnknownWriteRequiresFileReplacement) {
  const auto term = next_term();
  Disk first(Client(store_.members, 3), store_.prefix, term);
  first.append("log", bytes("a"));
  first.sync("log");
  etcd_->signal(0, SIGSTOP);
  first.append("log", bytes("b"));
  EXPECT_THROW(first.sync("log"), NotNow);
  etcd_->signal(0, SIGCONT);
  EXPECT_THROW(first.append("log", bytes("c")), DataError);
  EXPECT_THROW(first.sync("log"), DataError);
  first.replace("log", bytes("abc"));
  first.append("log", bytes("d"));
  first.sync("log");
  EXPECT_EQ(first.read("log"), bytes("abcd"));
}

TEST_F(EtcdDisk, ErrorNamesMembersThatDidNotAnswer) {
  etcd_->kill(0);
  Client asking({store_.members[0], {.host = "127.0.0.1", .port = 1}});
  try {
    asking.get("x");
    FAIL() << "somebody has answered";
  } catch (const Unreachable& error) {
    EXPECT_THAT(error.what(), HasSubstr(etcd_->member(0)));
    EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:1: "));
    EXPECT_THAT(error.what(), HasSubstr("connect"));
  }
}

TEST_F(EtcdDisk, RejectionQuotesEtcd) {
  Client asking = client();
  try {
    asking.commit({.when = {}, .writes = {{.key = "x", .value = std::string(1600000, 'x')}}, .removals = {}});
    FAIL() << "a request of 1.6 MB was taken";
  } catch (const Rejected& error) {
    EXPECT_THAT(error.what(), HasSubstr("request is too large"));
  }
}

}  // namespace
}  // namespace trireme::etcd
