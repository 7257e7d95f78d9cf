// A host of an elastic job: which hosts count as having just joined it.

#include "cli/launch/elastic_host.h"

#include <gtest/gtest.h>

#include "trireme/wire/store_server.h"

namespace trireme::cli {
namespace {

class JoiningHost : public testing::Test {
 protected:
  bool joins(const wire::ElasticWorld& world) {
    host_.enter(world);
    return host_.has_just_joined();
  }

  wire::StoreServer server_{wire::listen_at({"127.0.0.1", 0}), {}};
  ElasticHost host_{real_surroundings(), {.endpoint = server_.endpoint()}, /*node=*/2, /*capacity=*/1, 5};
};

TEST_F(JoiningHost, HasYoungerRanksThanOthers) {
  EXPECT_FALSE(joins({.generation = 1, .ranks = {{"0.0-0", 0}}})) << "it has no rank yet";
  EXPECT_TRUE(joins({.generation = 2, .ranks = {{"0.0-0", 0}, {"2.2-0", 2}}}));
  EXPECT_TRUE(joins({.generation = 3, .ranks = {{"0.0-0", 0}, {"2.2-0", 2}}})) << "world 2 was lost at once";
  host_.note_training();
  EXPECT_FALSE(host_.has_just_joined());
}

TEST_F(JoiningHost, IsNotOfFirstWorldOrRestart) {
  EXPECT_FALSE(joins({.generation = 0, .ranks = {{"0.0-0", 0}, {"2.0-0", 2}}}));
  EXPECT_FALSE(joins({.generation = 7, .ranks = {{"0.7-0", 0}, {"2.7-0", 2}}})) << "all hosts start again";
  EXPECT_FALSE(joins({.generation = 8, .ranks = {{"0.0-0", 0}, {"2.spare-0", 2}}})) << "it began as a spare";
}

}  // namespace
}  // namespace trireme::cli
