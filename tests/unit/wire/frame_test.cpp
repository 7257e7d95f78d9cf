// Frames as bytes: sent data are received, damage is named, and no field is trusted.

#include <gmock/gmock.h>

#include <cstring>
#include <functional>
#include <random>

#include "tests/unit/wire/message_bytes.h"
#include "trireme/base/text.h"
#include "trireme/wire/frame_decoder.h"
#include "trireme/wire/internal/send_queue.h"

namespace trireme::wire {
namespace {

using Bytes = std::vector<std::byte>;

/// All bytes that a queue has to send.
Bytes drained(SendQueue& queue, std::size_t most_bytes = 1 << 20) {
  Bytes result;
  while (!queue.empty()) {
    std::size_t count = 0;
    for (const iovec& part : queue.next(most_bytes, 96)) {
      const auto* bytes = static_cast<const std::byte*>(part.iov_base);
      result.insert(result.end(), bytes, bytes + part.iov_len);
      count += part.iov_len;
    }
    queue.gone(count);
  }
  return result;
}

Bytes bytes_of(const std::vector<Message>& messages, SendQueueOptions options = {}) {
  SendQueue queue(options);
  for (const Message& each : messages) queue.push(each);
  return drained(queue);
}

std::vector<Message> decoded(FrameDecoder& decoder, std::span<const std::byte> bytes,
                             std::size_t step = 1 << 30) {
  std::vector<Message> result;
  while (!bytes.empty() && decoder.fault() == FrameFault::kNone) {
    auto part = bytes.first(std::min(step, bytes.size()));
    bytes = bytes.subspan(part.size());
    while (!part.empty() && decoder.fault() == FrameFault::kNone) {
      if (auto message = decoder.take(part)) result.push_back(std::move(*message));
    }
  }
  return result;
}

struct Decoder : FrameDecoder {
  explicit Decoder(FrameLimits limits = {}) : FrameDecoder(limits, BufferPool::create(1 << 20)) {}
};

FrameFault fault_of(std::span<const std::byte> bytes, FrameLimits limits = {}) {
  Decoder decoder(limits);
  decoded(decoder, bytes);
  return decoder.fault();
}

/// A header with a correct checksum.
Bytes header_of(const FrameHeader& header) {
  const auto bytes = encode(header);
  return {bytes.begin(), bytes.end()};
}

const FrameHeader kPlain = {.kind = 3, .head_bytes = 2, .message = 1, .total_bytes = 10, .payload_bytes = 10};

TEST(Frame, HeadersComeBackAsTheyWere) {
  const FrameHeader sent{.kind = 65535,
                         .priority = 255,
                         .head_bytes = 65536,
                         .message = ~std::uint64_t{0},
                         .offset = 70000,
                         .total_bytes = 1 << 30,
                         .payload_bytes = 12345,
                         .payload_hash = 0x0123456789abcdef};
  FrameHeader got;
  ASSERT_EQ(decode(encode(sent), {}, got), FrameFault::kNone);
  EXPECT_EQ(encode(got), encode(sent));
  EXPECT_EQ(got.kind, sent.kind);
  EXPECT_EQ(got.payload_hash, sent.payload_hash);
}

TEST(Frame, FormIsThatOfVersionOne) {
  // Fixed bytes: a change of them requires a new version.
  const auto bytes = encode({.kind = 0x0201,
                             .priority = 5,
                             .head_bytes = 3,
                             .message = 4,
                             .offset = 0,
                             .total_bytes = 6,
                             .payload_bytes = 6,
                             .payload_hash = 8});
  std::string hex;
  for (const std::byte each : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[std::to_integer<int>(each) >> 4];
    hex += kDigits[std::to_integer<int>(each) & 15];
  }
  EXPECT_EQ(hex.substr(0, 16), "5452574601050102");
  EXPECT_EQ(hex.substr(24),
            "030000000400000000000000"
            "0000000000000000"
            "0600000000000000"
            "0600000000000000"
            "0800000000000000"
            "0000000000000000");
}

TEST(Frame, EveryBitOfAHeaderIsGuarded) {
  const auto good = encode(kPlain);
  FrameHeader ignored;
  ASSERT_EQ(decode(good, {}, ignored), FrameFault::kNone);
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_NE(decode(bad, {}, ignored), FrameFault::kNone) << "bit " << bit;
  }
}

TEST(Frame, HeaderNumbersAreConsistent) {
  const auto with = [](const std::function<void(FrameHeader&)>& change) {
    FrameHeader header = kPlain;
    change(header);
    return fault_of(header_of(header), {.max_message_bytes = 1000, .max_unfinished_bytes = 2000});
  };
  EXPECT_EQ(with([](auto&) {}), FrameFault::kNone);
  EXPECT_EQ(with([](auto& h) { h.total_bytes = 1001; }), FrameFault::kTooLong);
  EXPECT_EQ(with([](auto& h) { h.total_bytes = std::int64_t{4} << 30; }), FrameFault::kTooLong);
  EXPECT_EQ(with([](auto& h) { h.total_bytes = -1; }), FrameFault::kTooLong);
  EXPECT_EQ(with([](auto& h) { h.head_bytes = 11; }), FrameFault::kHeadTooLong);
  EXPECT_EQ(with([](auto& h) { h.payload_bytes = 1; }), FrameFault::kHeadTooLong);
  EXPECT_EQ(with([](auto& h) { h.payload_bytes = 11; }), FrameFault::kChunk);
  EXPECT_EQ(with([](auto& h) { h.payload_bytes = 0; }), FrameFault::kChunk);
  EXPECT_EQ(with([](auto& h) { h.payload_bytes = -1; }), FrameFault::kChunk);
  EXPECT_EQ(with([](auto& h) { h.offset = -1; }), FrameFault::kChunk);
  EXPECT_EQ(with([](auto& h) { h.offset = h.payload_bytes = INT64_MAX; }), FrameFault::kChunk);
  EXPECT_EQ(with([](auto& h) { h.offset = 4, h.payload_bytes = 6; }), FrameFault::kOrder);
  EXPECT_EQ(with([](auto& h) { h.message = 0; }), FrameFault::kOrder);
  FrameHeader long_head = kPlain;
  long_head.head_bytes = Message::kMaxHeadBytes + 1;
  long_head.total_bytes = long_head.payload_bytes = 1 << 20;
  EXPECT_EQ(fault_of(header_of(long_head)), FrameFault::kHeadTooLong);
}

TEST(Frame, MessagesSurviveAnyCutOfBytes) {
  std::vector<Message> sent;
  for (const std::size_t bytes : {0u, 1u, 100u, 4096u, 70000u, 300000u}) {
    sent.push_back(
        {.kind = static_cast<std::uint16_t>(bytes), .head = head_of(text(bytes)), .body = body_of(bytes)});
  }
  const Bytes bytes = bytes_of(sent, {.chunk_bytes = 5000, .age_bytes = 5000});
  for (const std::size_t step : {1u, 7u, 63u, 64u, 65u, 5000u, 1u << 20}) {
    Decoder decoder;
    const auto got = decoded(decoder, bytes, step);
    ASSERT_EQ(decoder.fault(), FrameFault::kNone);
    ASSERT_EQ(got.size(), sent.size()) << step;
    for (std::size_t i = 0; i < sent.size(); ++i) {
      EXPECT_EQ(got[i].head, sent[i].head);
      EXPECT_TRUE(same_bytes(got[i].body, sent[i].body));
    }
    EXPECT_EQ(decoder.unfinished_bytes(), 0);
  }
}

TEST(Frame, ADamagedPayloadIsNoMessage) {
  Bytes bytes = bytes_of({{.head = head_of("head"), .body = body_of(1000)}});
  for (const std::size_t at : {64u, 67u, 68u, 500u, 1067u}) {
    Bytes bad = bytes;
    bad[at] ^= std::byte{1};
    EXPECT_EQ(fault_of(bad), FrameFault::kPayloadChecksum) << at;
  }
}

TEST(Frame, PayloadsWithoutHashesComeInSteps) {
  const Message sent{.head = head_of("head"), .body = body_of(1 << 20)};
  SendQueue queue({.chunk_bytes = 600'000});
  queue.set_hashes(false);
  queue.push(sent);
  const Bytes bytes = drained(queue);
  EXPECT_EQ(fault_of(bytes), FrameFault::kPayloadChecksum) << "ends have to agree";
  for (const std::size_t step : {7u, 65u, 5000u, 1u << 30}) {
    Decoder decoder;
    decoder.set_hashes(false);
    const auto got = decoded(decoder, bytes, step);
    ASSERT_EQ(got.size(), 1u) << step;
    EXPECT_EQ(got[0].head, sent.head);
    EXPECT_TRUE(same_bytes(got[0].body, sent.body));
  }
  Bytes bad = bytes;
  bad[30] ^= std::byte{1};
  Decoder decoder;
  decoder.set_hashes(false);
  decoded(decoder, bad);
  EXPECT_EQ(decoder.fault(), FrameFault::kHeaderChecksum) << "headers are checked all the same";
}

TEST(Frame, RejectsRepeatedFrames) {
  const Bytes once = bytes_of({{.body = body_of(10)}});
  Bytes twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_EQ(fault_of(twice), FrameFault::kOrder);
}

TEST(Frame, PartsOfAMessageFollowEachOther) {
  const Bytes bytes = bytes_of({{.body = body_of(12288)}}, {.chunk_bytes = 4096, .age_bytes = 4096});
  const std::size_t frame = 4096 + kFrameHeaderBytes;
  ASSERT_EQ(bytes.size(), 3 * frame);
  const auto pick = [&](std::vector<int> parts) {
    Bytes result;
    for (const int part : parts) {
      const auto* from = bytes.data() + static_cast<std::size_t>(part) * frame;
      result.insert(result.end(), from, from + frame);
    }
    return result;
  };
  EXPECT_EQ(fault_of(pick({0, 1, 2})), FrameFault::kNone);
  EXPECT_EQ(fault_of(pick({0, 2})), FrameFault::kOrder);
  EXPECT_EQ(fault_of(pick({0, 1, 1})), FrameFault::kOrder);
  EXPECT_EQ(fault_of(pick({0, 0})), FrameFault::kOrder);
  EXPECT_EQ(fault_of(pick({1})), FrameFault::kOrder);
}

TEST(Frame, UnfinishedMessagesAreBounded) {
  const FrameLimits limits{.max_message_bytes = 10000, .max_unfinished_bytes = 20000};
  Decoder decoder(limits);
  for (Priority priority = 0; priority < 3; ++priority) {
    const Bytes body(100);
    FrameHeader header{
        .priority = priority, .message = priority + 1u, .total_bytes = 9000, .payload_bytes = 100};
    header.payload_hash = payload_hash({}, body);
    Bytes bytes = header_of(header);
    bytes.insert(bytes.end(), body.begin(), body.end());
    decoded(decoder, bytes);
    EXPECT_EQ(decoder.fault(), priority < 2 ? FrameFault::kNone : FrameFault::kUnfinished);
  }
}

TEST(Frame, AMillionRandomHeadersAreRejected) {
  std::mt19937_64 random(7);
  std::array<int, kNumFrameFaults> found{};
  for (int i = 0; i < 1'000'000; ++i) {
    // Half are random bytes. Half are well-formed with random fields and a correct checksum.
    Bytes bytes(kFrameHeaderBytes);
    if (i % 2 == 0) {
      for (std::size_t at = 0; at < bytes.size(); at += 8) {
        const std::uint64_t noise = random();
        std::memcpy(bytes.data() + at, &noise, 8);
      }
      if (i % 4 == 0) std::memcpy(bytes.data(), &kFrameMagic, 4);
    } else {
      const auto any = [&] { return static_cast<std::int64_t>(random() >> random() % 64); };
      bytes = header_of({.priority = static_cast<Priority>(random()),
                         .head_bytes = static_cast<std::uint32_t>(any()),
                         .message = random(),
                         .offset = any() - 5,
                         .total_bytes = (std::int64_t{1} << 30) + 1 + (any() >> 1),
                         .payload_bytes = any()});
    }
    ++found[static_cast<std::size_t>(fault_of(bytes))];
  }
  EXPECT_EQ(found[0], 0);
  EXPECT_EQ(found[static_cast<std::size_t>(FrameFault::kTooLong)], 500'000);
  EXPECT_GT(found[static_cast<std::size_t>(FrameFault::kMagic)], 200'000);
}

TEST(Frame, MutatedStreamInventsNoMessages) {
  std::mt19937_64 random(11);
  std::vector<Message> sent;
  for (int i = 0; i < 6; ++i) {
    sent.push_back({.kind = static_cast<std::uint16_t>(i),
                    .priority = static_cast<Priority>(i % 3),
                    .head = head_of("head"),
                    .body = body_of(900, static_cast<std::uint64_t>(i))});
  }
  const Bytes good = bytes_of(sent, {.chunk_bytes = 400, .age_bytes = 400});
  for (int round = 0; round < 100'000; ++round) {
    Bytes bad = good;
    switch (random() % 4) {
      case 0:
        bad[random() % bad.size()] ^= static_cast<std::byte>(1 << random() % 8);
        break;
      case 1:
        bad.erase(bad.begin() + static_cast<long>(random() % bad.size()));
        break;
      case 2:
        bad.insert(bad.begin() + static_cast<long>(random() % bad.size()), static_cast<std::byte>(random()));
        break;
      default:
        bad.resize(random() % bad.size());
    }
    Decoder decoder;
    for (const Message& message : decoded(decoder, bad, 1 + random() % 2000)) {
      ASSERT_LT(message.kind, sent.size());
      ASSERT_TRUE(same_bytes(message.body, sent[message.kind].body));
      ASSERT_EQ(message.head, sent[message.kind].head);
    }
  }
}

/// The priorities of frames in the order of sending.
std::vector<int> order_of(SendQueue& queue) {
  std::vector<int> result;
  Bytes bytes = drained(queue, 1);
  for (std::size_t at = 0; at < bytes.size();) {
    FrameHeader header;
    EXPECT_EQ(decode(std::span<const std::byte, kFrameHeaderBytes>(bytes.data() + at, kFrameHeaderBytes), {},
                     header),
              FrameFault::kNone);
    result.push_back(header.priority);
    at += kFrameHeaderBytes + static_cast<std::size_t>(header.payload_bytes);
  }
  return result;
}

TEST(SendQueue, UrgentMessagesOvertakeLongOnes) {
  SendQueue queue({.chunk_bytes = 100, .age_bytes = 1 << 20});
  queue.push({.priority = 5, .body = body_of(300)});
  queue.push({.priority = 5, .body = body_of(10)});
  std::size_t count = 0;
  for (const iovec& part : queue.next(1, 3)) count += part.iov_len;
  queue.gone(count);  // the first frame of the long message
  queue.push({.priority = 2, .body = body_of(200)});
  EXPECT_THAT(order_of(queue), testing::ElementsAre(2, 2, 5, 5, 5));
}

TEST(SendQueue, LowPriorityFramesAreNotStarved) {
  SendQueue queue({.chunk_bytes = 1000, .age_bytes = 10000});
  queue.push({.priority = 3, .body = body_of(2000)});
  for (int i = 0; i < 200; ++i) queue.push({.priority = 0, .body = body_of(1000)});
  const std::vector<int> order = order_of(queue);
  const auto first = std::ranges::find(order, 3);
  const auto second = std::find(first + 1, order.end(), 3);
  ASSERT_NE(second, order.end());
  // By the formula: at the latest after (3 + 1) * age_bytes of other messages.
  EXPECT_LE((first - order.begin()) * 1000, 40000);
  EXPECT_GE((first - order.begin()) * 1000, 20000);
  EXPECT_LE((second - first) * 1000, 40000);
}

TEST(SendQueue, NeverBeginsMoreThanTheReceiverTakes) {
  SendQueue queue({.chunk_bytes = 1000, .age_bytes = 1 << 20, .max_unfinished_bytes = 10000});
  queue.push({.priority = 9, .body = body_of(8000)});
  Bytes bytes;
  const auto send_one = [&] {
    std::size_t count = 0;
    for (const iovec& part : queue.next(1, 3)) {
      const auto* from = static_cast<const std::byte*>(part.iov_base);
      bytes.insert(bytes.end(), from, from + part.iov_len);
      count += part.iov_len;
    }
    queue.gone(count);
  };
  send_one();
  queue.push({.priority = 0, .body = body_of(8000)});
  while (!queue.empty()) send_one();
  Decoder decoder({.max_message_bytes = 8000, .max_unfinished_bytes = 10000});
  EXPECT_EQ(decoded(decoder, bytes).size(), 2u);
  EXPECT_EQ(decoder.fault(), FrameFault::kNone);
}

TEST(SendQueue, CountsWaitingBytes) {
  SendQueue queue({.chunk_bytes = 1000, .age_bytes = 1000});
  queue.push({.head = head_of("abc"), .body = body_of(2500)});
  EXPECT_GE(queue.waiting_bytes(), 2503u);
  while (!queue.empty()) {
    ASSERT_FALSE(queue.next(1 << 20, 96).empty());
    queue.gone(1);  // like a socket that accepts one byte at a time
  }
  EXPECT_EQ(queue.waiting_bytes(), 0u);
  EXPECT_EQ(queue.num_frames(), 3u);
}

TEST(BufferPool, LargeBuffersAreReusedAndOutlivePool) {
  auto pool = BufferPool::create(1 << 20);
  std::byte* first = nullptr;
  {
    const FreshBuffer buffer = pool->take(300000);
    first = buffer.bytes.data();
  }
  EXPECT_EQ(pool->kept_bytes(), 512u << 10);
  FreshBuffer again = pool->take(280000);
  EXPECT_EQ(again.bytes.data(), first);
  EXPECT_EQ(pool->kept_bytes(), 0u);
  const FreshBuffer large = pool->take(3 << 20);
  pool.reset();
  again.bytes[279999] = std::byte{1};
}

TEST(BufferPool, KeepsNoMoreThanItMay) {
  const auto pool = BufferPool::create(1 << 20);
  { const FreshBuffer too_large = pool->take(3 << 20); }
  EXPECT_EQ(pool->kept_bytes(), 0u);
}

}  // namespace
}  // namespace trireme::wire
