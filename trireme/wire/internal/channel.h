#pragma once
// One connection of a loop, from connect() or accept() to its end: a stream, the handshake, then frames both
// ways. It notifies its owner of events and never calls it from within close(). Belongs to the loop's thread.

#include <memory>
#include <vector>

#include "trireme/base/clock.h"
#include "trireme/wire/frame_decoder.h"
#include "trireme/wire/internal/channel_address.h"
#include "trireme/wire/internal/handshake.h"
#include "trireme/wire/internal/ring_stream.h"
#include "trireme/wire/internal/send_queue.h"
#include "trireme/wire/internal/socket_stream.h"
#include "trireme/wire/internal/tls_stream.h"

namespace trireme::wire {

class Channel;

class ChannelOwner {
 public:
  virtual ~ChannelOwner() = default;
  virtual void channel_opened(Channel& channel) = 0;
  virtual void channel_message(Channel& channel, Message message) = 0;
  /// The owner closes it. `rejection` is a word for counters, empty where the cause is enough.
  virtual void channel_failed(Channel& channel, CloseCause cause, const std::string& refusal,
                              const std::string& reason) = 0;
};

/// Common settings of all channels of a loop.
struct ChannelSettings {
  HandshakeOptions handshake = {};  ///< without settings of one connection
  SendQueueOptions queue = {};
  FrameLimits limits = {};
  double handshake_s = 5, connect_s = 10;
  std::shared_ptr<BufferPool> pool = {};
  std::shared_ptr<TlsContext> tls = {};  ///< null: none
  std::size_t ring_bytes = 1 << 20;
  std::vector<std::byte> stage = std::vector<std::byte>(256 << 10);  ///< read buffer, for any channel
};

class Channel {
 public:
  enum class State { kConnecting, kSecuring, kMeeting, kOpen, kClosed };

  /// Connects: to the first of the addresses that answers. `target` is for messages.
  Channel(ConnectionId id, ChannelSettings& settings, ChannelOwner& owner, ChannelAddress target);
  /// One that has been accepted.
  Channel(ConnectionId id, ChannelSettings& settings, ChannelOwner& owner, TransportKind kind, Socket socket);
  ~Channel();

  ConnectionId id() const { return id_; }
  State state() const { return state_; }
  bool accepted() const { return accepted_; }
  bool is_open() const { return state_ == State::kOpen; }
  bool was_open() const { return was_open_; }
  /// Whether arm() means anything.
  bool asks_before_sleep() const { return stream_ && stream_->tells_room_by_input(); }
  int fd() const;
  /// Grows with every socket that it tries.
  int attempt() const { return attempt_; }
  /// The events to request from epoll; 0: none.
  std::uint32_t wanted_events() const;
  /// "worker 3 at tcp:10.0.0.2:41234", for messages.
  std::string peer_text() const;
  const PeerIdentity& peer() const { return handshake_->peer(); }
  const FrameLimits& peer_limits() const { return handshake_->peer_limits(); }

  /// The target and its addresses. Begins to connect.
  void connect(ChannelAddress target, std::vector<SocketAddress> addresses);
  /// Handles the events of epoll.
  void serve(std::uint32_t events);
  /// Reads and passes on the available bytes, up to a share; more_input() returns whether there are more.
  void receive();
  bool more_input();
  /// It is not served before its descriptor has an event; true when there is input already.
  bool arm() { return is_open() && !paused_ && stream_->arm(); }
  void send(Message message);
  void flush();
  void pause() { paused_ = true; }
  void resume() { paused_ = false; }
  bool paused() const { return paused_; }
  /// Closes without a word to the owner.
  void close();

  bool has_output() const { return !queue_.empty() || (stream_ && stream_->has_output()); }
  bool blocked() const { return blocked_; }
  std::size_t waiting_bytes() const { return queue_.waiting_bytes(); }
  /// Fails it where its time is over: of the handshake, of a peer that takes nothing, and since the beginning
  /// of a guest's.
  void look_at_clock(double patience_s, double guest_s);
  /// When something has last come.
  double received_at_s() const { return received_at_s_; }
  std::uint64_t num_bytes_in() const { return num_bytes_in_; }
  std::uint64_t num_bytes_out() const { return num_bytes_out_; }
  std::uint64_t num_frames_in() const { return decoder_.num_frames(); }
  std::uint64_t num_frames_out() const { return queue_.num_frames(); }

 private:
  void try_next_address(const std::string& reason_so_far);
  void connected();
  void secure();
  void begin_meeting();
  void meet(std::uint32_t events);
  Flow read_meeting(std::size_t wanted, std::string& bytes);
  bool write_meeting();
  void open();
  bool share_memory();
  bool read_once();
  /// How much of it was taken: all, unless a callback pauses or closes.
  std::size_t hand_over(std::span<const std::byte> bytes);
  void check_decoder();
  void fail(CloseCause cause, const std::string& refusal, const std::string& reason);
  void fail_stream(Flow flow);
  bool right_user();

  const ConnectionId id_;
  ChannelSettings& settings_;
  ChannelOwner& owner_;
  const bool accepted_;
  ChannelAddress target_;
  std::vector<SocketAddress> addresses_;  ///< still to be tried, last first
  State state_ = State::kConnecting;
  Socket connecting_;
  int attempt_ = 1;
  std::unique_ptr<Stream> stream_;
  SocketStream* plain_ = nullptr;  ///< stream_, where it is that
  TlsStream* tls_ = nullptr;
  std::string near_end_;
  std::optional<PeerIdentity> proved_;  ///< by a certificate
  std::unique_ptr<RingMemory> memory_;  ///< until the stream has it
  std::optional<Handshake> handshake_;
  std::string handshake_out_;
  std::string far_end_;
  Deadline deadline_;
  FrameDecoder decoder_;
  SendQueue queue_;
  std::vector<std::byte> left_over_;  ///< read, and not decoded because of pause()
  std::size_t left_over_at_ = 0;
  bool was_open_ = false;
  bool paused_ = false;
  bool blocked_ = false;  ///< the stream takes nothing at the moment
  bool large_frames_ = false;
  const double began_s_ = now_s();
  double sent_at_s_ = 0, received_at_s_ = 0;
  std::uint64_t num_bytes_in_ = 0, num_bytes_out_ = 0;
};

}  // namespace trireme::wire
