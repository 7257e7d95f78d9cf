#include "trireme/telemetry/tensorboard_sink.h"

#include <gmock/gmock.h>

#include <cstring>
#include <map>

#include "tests/support/temporary_folder.h"
#include "trireme/base/crc32c.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::telemetry {
namespace {

using testing::ElementsAre;
using testing::Pair;

/// The content of a file for a reader of the formats, which is written from their definitions only.
struct Event {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string version;
  std::map<std::string, float> scalars;
};

/// A protocol-buffers message, field by field.
class Message {
 public:
  explicit Message(std::string bytes) : bytes_(std::move(bytes)) {}
  bool next() {
    if (at_ == bytes_.size()) return false;
    const std::uint64_t key = number();
    field = static_cast<int>(key >> 3);
    type = static_cast<int>(key & 7);
    if (type == 0) value = number();
    if (type == 1) content = take(8);
    if (type == 2) content = take(number());
    if (type == 5) content = take(4);
    EXPECT_TRUE(type == 0 || type == 1 || type == 2 || type == 5) << "wire type " << type;
    return true;
  }
  template <class T>
  T as() const {
    T result{};
    EXPECT_EQ(content.size(), sizeof result);
    std::memcpy(&result, content.data(), sizeof result);  // this test runs on little-endian machines only
    return result;
  }

  int field = 0, type = 0;
  std::uint64_t value = 0;
  std::string content;

 private:
  std::uint64_t number() {
    std::uint64_t result = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.at(at_++));
      result += std::uint64_t{byte % 128u} << shift;
      if (byte < 128) return result;
    }
  }
  std::string take(std::size_t size) {
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

  std::string bytes_;
  std::size_t at_ = 0;
};

std::pair<std::string, float> scalar_of(Message value) {
  std::pair<std::string, float> result;
  while (value.next()) {
    if (value.field == 1) result.first = value.content;
    if (value.field == 2) result.second = value.as<float>();
  }
  return result;
}

Event event_of(Message message) {
  Event event;
  while (message.next()) {
    if (message.field == 1) event.wall_time = message.as<double>();
    if (message.field == 2) event.step = static_cast<std::int64_t>(message.value);
    if (message.field == 3) event.version = message.content;
    if (message.field != 5) continue;
    for (Message summary(message.content); summary.next();) {
      EXPECT_EQ(summary.field, 1);
      event.scalars.insert(scalar_of(Message(summary.content)));
    }
  }
  return event;
}

std::uint32_t unmasked(std::uint32_t masked) {
  const std::uint32_t rotated = masked - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

template <class Word>
Word word(const std::string& bytes, std::size_t at) {
  Word result{};
  std::memcpy(&result, bytes.substr(at, sizeof result).data(), sizeof result);
  return result;
}

class Tensorboard : public testing::Test {
 protected:
  /// The events of all files, in the order of file names.
  std::vector<Event> events() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      files[entry.path().filename().string()] = read_file(entry.path());
    }
    std::vector<Event> result;
    for (const auto& [name, content] : files) {
      EXPECT_THAT(name, testing::HasSubstr("tfevents"));
      for (std::size_t at = 0; at < content.size();) {
        const auto length = word<std::uint64_t>(content, at);
        EXPECT_EQ(unmasked(word<std::uint32_t>(content, at + 8)), crc32c(content.substr(at, 8)));
        const std::string payload = content.substr(at + 12, length);
        EXPECT_EQ(payload.size(), length);
        EXPECT_EQ(unmasked(word<std::uint32_t>(content, at + 12 + length)), crc32c(payload));
        result.push_back(event_of(Message(payload)));
        at += 12 + length + 4;
      }
    }
    return result;
  }

  std::vector<std::int64_t> steps() const {
    std::vector<std::int64_t> result;
    for (const Event& event : events()) {
      if (event.version.empty()) result.push_back(event.step);
    }
    return result;
  }

  static Record step(std::int64_t number) {
    return {"step", {{"step", number}, {"loss", 0.5}, {"lr", 0.1}, {"time_s", 3.0}}};
  }

  test::TemporaryFolder folder_;
};

TEST_F(Tensorboard, HoldsTheScalarsOfStepsAndEvaluations) {
  {
    TensorboardSink sink(folder_.path());
    sink.write(step(300));
    sink.write(
        {"eval", {{"step", std::int64_t{300}}, {"test_accuracy", 0.75}, {"samples", std::int64_t{1000}}}});
    sink.write({"note", {{"text", "no step, no scalar"}}});
  }
  const std::vector<Event> found = events();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].version, "brain.Event:2");
  EXPECT_GT(found[0].wall_time, 1.7e9);
  EXPECT_EQ(found[1].step, 300);
  EXPECT_GE(found[1].wall_time, found[0].wall_time);
  EXPECT_THAT(found[1].scalars, ElementsAre(Pair("step/loss", 0.5f), Pair("step/lr", 0.1f)));
  EXPECT_THAT(found[2].scalars,
              ElementsAre(Pair("eval/samples", 1000.0f), Pair("eval/test_accuracy", 0.75f)));
}

TEST_F(Tensorboard, AResumedRunHasEachStepOnce) {
  {
    TensorboardSink sink(folder_.path());
    for (const std::int64_t number : {1, 2, 127, 128, 300}) sink.write(step(number));
  }
  drop_events_after(folder_.path(), 127);
  EXPECT_THAT(steps(), ElementsAre(1, 2, 127));
  TensorboardSink sink(folder_.path());
  sink.write(step(128));
  EXPECT_THAT(steps(), ElementsAre(1, 2, 127, 128)) << "the second file sorts behind the first";
}

TEST_F(Tensorboard, TruncatedEventIsDropped) {
  {
    TensorboardSink sink(folder_.path());
    for (const std::int64_t number : {1, 2}) sink.write(step(number));
  }
  const std::filesystem::path file = std::filesystem::directory_iterator(folder_.path())->path();
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 3);
  drop_events_after(folder_.path(), 100);
  EXPECT_THAT(steps(), ElementsAre(1));
  EXPECT_NO_THROW(drop_events_after(folder_ / "absent", 1));
}

TEST_F(Tensorboard, UncreatableFolderIsDataError) {
  EXPECT_THROW(TensorboardSink("/proc/nowhere"), DataError);
}

}  // namespace
}  // namespace trireme::telemetry
