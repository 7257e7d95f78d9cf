#include "trireme/autopsy/verdict.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <functional>
#include <set>

#include "tests/support/paths.h"
#include "trireme/autopsy/operation_text.h"
#include "trireme/base/files.h"

namespace trireme::autopsy {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// A world in which all other ranks wait for rank 1.
Evidence world(int size = 3) {
  Evidence evidence;
  evidence.occasion = "stall";
  evidence.world_size = size;
  evidence.hosts.push_back({.name = "node0"});
  for (int number = 0; number < size; ++number) {
    RankEvidence& rank = evidence.ranks.emplace_back();
    rank.rank = number;
    rank.pid = 100 + number;
    rank.host = "node0";
    rank.state = "S";
    rank.window_s = 2;
    rank.still_s = 3;
    rank.action = "step 7: 0B0";
    const bool is_behind = number == 1;
    rank.operation = is_behind ? "all_reduce #11 of group world, 64 f32, done"
                               : "all_reduce #12 of group world, 64 f32, running";
    if (!is_behind) rank.waits_for = {1};
  }
  return evidence;
}

/// The same after the end of rank 1, because of which the other ranks give up.
Evidence ended(int exit_code, int signal, const std::vector<std::string>& lines = {}) {
  Evidence evidence = world();
  evidence.occasion = "end";
  for (RankEvidence& rank : evidence.ranks) {
    rank.ended = true;
    rank.exit_code = 3;
    rank.ended_s = 8;
    rank.last_lines = {"trireme: error: all_reduce #12 of group world: rank 1 (pid 101) died"};
  }
  RankEvidence& rank = evidence.ranks[1];
  rank.exit_code = exit_code;
  rank.signal = signal;
  rank.ended_s = 9;  // the others may detect it first
  rank.last_lines = lines;
  return evidence;
}

BlockedThread thread(const std::string& call, const std::string& kind, const std::string& target) {
  BlockedThread result;
  result.name = "load-0";
  result.state = "S";
  result.call = call;
  result.kind = kind;
  result.target = target;
  return result;
}

/// For each cause, evidence that shows it on rank 1, and words of the verdict's paragraph.
struct Example {
  std::string cause;
  std::function<Evidence()> make;
  std::string words;
};

Evidence changed(Evidence evidence, const std::function<void(RankEvidence&)>& change) {
  change(evidence.ranks[1]);
  return evidence;
}

std::vector<Example> examples() {
  const std::string disagreement =
      "trireme: error: rank 0, group 'world', all_reduce #12: the ranks disagree: rank 0, 2 issued "
      "all_reduce of 64 "
      "f32 (sum); rank 1 issued all_reduce of 32 f32 (sum). Every rank has to issue the same operations in "
      "the same "
      "order";
  return {
      {"told to stop",
       [] {
         Evidence evidence = ended(0, SIGTERM);
         evidence.told_to_stop = SIGTERM;
         evidence.told_by = "process 4711 (scancel)";
         return evidence;
       },
       "SIGTERM from process 4711 (scancel)"},
      {"memory limit",
       [] {
         return changed(ended(0, SIGKILL), [](RankEvidence& rank) {
           rank.group_oom_kills = 1;
           rank.group = "/job_7";
           rank.group_limit_bytes = 1 << 20;
         });
       },
       "/job_7"},
      {"out of memory",
       [] {
         Evidence evidence = ended(0, SIGKILL);
         evidence.hosts[0].oom_kills = 1;
         return evidence;
       },
       "the host had no more memory"},
      {"killed", [] { return ended(0, SIGKILL); }, "rank 1 (pid 101) was killed by SIGKILL"},
      {"stopped", [] { return changed(world(), [](RankEvidence& rank) { rank.state = "T"; }); },
       "kill -CONT 101"},
      {"mismatched operations", [=] { return ended(3, 0, {disagreement}); }, "all_reduce of 32 f32 (sum)"},
      {"exception", [] { return ended(70, 0, {"trireme: error: no such word"}); }, "no such word"},
      {"crash", [] { return ended(0, SIGSEGV, {"about to read"}); }, "crashed by SIGSEGV"},
      {"link",
       [] {
         return changed(world(), [](RankEvidence& rank) {
           rank.silent_peers = {{.address = "10.0.0.2:40000", .retransmissions = 4}};
         });
       },
       "10.0.0.2:40000"},
      {"swapping",
       [] {
         return changed(world(), [](RankEvidence& rank) {
           rank.major_faults_per_s = 400;
           rank.swapped_bytes = 1 << 30;
         });
       },
       "1.0 GiB of its memory are in the swap area"},
      {"no cores", [] { return changed(world(), [](RankEvidence& rank) { rank.waits_for_core = 0.97; }); },
       "97 %"},
      {"waiting for data",
       [] {
         return changed(world(), [](RankEvidence& rank) {
           rank.own_work = "waiting for data";
           rank.blocked = {thread("read", "pipe", "/data/words.fifo")};
         });
       },
       "/data/words.fifo"},
      {"disk",
       [] {
         return changed(world(), [](RankEvidence& rank) {
           rank.own_work = "saving a checkpoint to runs/quick";
           rank.blocked = {thread("fsync", "file", "/data/runs/quick/model.safetensors")};
         });
       },
       "the file /data/runs/quick/model.safetensors"},
      {"deadlock",
       [] {
         Evidence evidence = world(2);
         evidence.ranks[0].waits_for = {1};
         evidence.ranks[1].operation = "recv #3 of group pp, 4 f32, running";
         evidence.ranks[1].waits_for = {0};
         return evidence;
       },
       "rank 1 is in recv #3 of group pp"},
      {"never entered",
       [] {
         return changed(world(), [](RankEvidence& rank) {
           rank.blocked = {thread("clock_nanosleep", "", "")};
           rank.blocked[0].first = true;
         });
       },
       "has not entered all_reduce #12 of group world"},
      {"lost contact",
       [] {
         Evidence evidence = ended(3, 0, {"trireme: error: the store has not answered"});
         for (RankEvidence& rank : evidence.ranks) {
           rank.operation = "all_reduce #12 of group world, 64 f32, done";
           rank.waits_for.clear();
         }
         return evidence;
       },
       "was missed by the other ranks"},
  };
}

TEST(Causes, HaveAnExampleForEachRow) {
  std::set<std::string> rows, shown;
  for (const CauseRow& row : causes()) rows.insert(row.name);
  for (const Example& example : examples()) shown.insert(example.cause);
  EXPECT_EQ(shown, rows);
}

TEST(Causes, MatchTheirPageInOrder) {
  const std::string page = read_file(test::checkout("docs/autopsy.md"));
  std::size_t at = 0;
  for (const CauseRow& row : causes()) {
    const std::size_t found = page.find(text("\n| `", row.name, "` | ", row.meaning, " | "), at);
    EXPECT_NE(found, std::string::npos) << row.name;
    if (found != std::string::npos) at = found;
  }
}

TEST(Causes, AreFoundWithRankAndEvidence) {
  for (const Example& example : examples()) {
    SCOPED_TRACE(example.cause);
    const Verdict verdict = judge(example.make());
    EXPECT_EQ(verdict.cause, example.cause) << paragraph(verdict);
    EXPECT_THAT(paragraph(verdict), HasSubstr(example.words));
    if (example.cause == "told to stop") continue;
    if (example.cause == "deadlock")
      EXPECT_THAT(verdict.ranks, ElementsAre(0, 1));
    else
      EXPECT_THAT(verdict.ranks, ElementsAre(1)) << paragraph(verdict);
  }
}

TEST(Causes, HaveActionAndOperationOfTheRank) {
  const Verdict verdict = judge(ended(0, SIGKILL));
  EXPECT_EQ(verdict.action, "step 7: 0B0");
  EXPECT_EQ(verdict.operation, "all_reduce #11 of group world, 64 f32, done");
}

TEST(Causes, AreNoneForRunThatEndedWell) {
  Evidence evidence = world();
  for (RankEvidence& rank : evidence.ranks) rank.ended = true;
  for (RankEvidence& rank : evidence.ranks) rank.operation = "barrier #9 of group world, done";
  for (RankEvidence& rank : evidence.ranks) rank.waits_for.clear();
  EXPECT_EQ(judge(evidence).cause, "");
  EXPECT_EQ(paragraph(judge(evidence)), "");
}

TEST(Causes, AreNoneWhereAllRanksCompute) {
  Evidence evidence = world();
  for (RankEvidence& rank : evidence.ranks) {
    rank.operation = "all_reduce #12 of group world, 64 f32, done";
    rank.waits_for.clear();
    rank.busy = 1;
  }
  EXPECT_EQ(judge(evidence).cause, "");
}

TEST(Causes, KernelLogOfOtherRankIsIrrelevant) {
  Evidence evidence = ended(0, SIGKILL);
  evidence.hosts[0].oom_kills = 3;  // of other processes
  evidence.ranks[1].log_read = true;
  EXPECT_EQ(judge(evidence).cause, "killed");
  evidence.ranks[1].killed_for_memory = true;
  EXPECT_EQ(judge(evidence).cause, "out of memory");
}

TEST(Causes, CountedKillIsLackOfHostMemory) {
  Evidence evidence = ended(0, SIGKILL);
  evidence.hosts[0].oom_kills = 1;
  evidence.ranks[1].kills_counted = true;  // its own group has no kill, so the kill was in another group
  EXPECT_EQ(judge(evidence).cause, "killed");
  evidence.ranks[1].oom_kills = 1;
  EXPECT_EQ(judge(evidence).cause, "out of memory");
}

TEST(Causes, FollowChainOfWaitsToItsEnd) {
  Evidence evidence = world(4);
  evidence.ranks[0].waits_for = {3};
  evidence.ranks[3].waits_for = {2};
  evidence.ranks[2].waits_for = {1};
  evidence.ranks[3].still_s = 9;
  EXPECT_THAT(judge(evidence).ranks, ElementsAre(1));
}

TEST(Causes, InferWaitingRanksFromOperationNumbers) {
  Evidence evidence = world();
  for (RankEvidence& rank : evidence.ranks) rank.waits_for.clear();
  EXPECT_EQ(judge(evidence).cause, "never entered");
  EXPECT_THAT(judge(evidence).ranks, ElementsAre(1));
}

TEST(Causes, SlowRunHasCoresOrMemoryOnly) {
  Evidence evidence = world();
  evidence.occasion = "slow";
  EXPECT_EQ(judge(evidence).cause, "");
  evidence.ranks[2].throttled = 0.9;
  EXPECT_EQ(judge(evidence).cause, "no cores");
  EXPECT_THAT(judge(evidence).ranks, ElementsAre(2));
}

TEST(Causes, SlowRunPrefersRanksOutsideOperations) {
  Evidence evidence = world();
  evidence.occasion = "slow";
  evidence.ranks[0].waits_for_core = 1;  // within an operation
  evidence.ranks[1].waits_for_core = 0.95;
  EXPECT_THAT(judge(evidence).ranks, ElementsAre(1));
}

TEST(Causes, NameBothRanksWithoutMajority) {
  Evidence evidence =
      ended(3, 0,
            {"error: the ranks disagree: rank 0 issued barrier; rank 1 issued all_reduce of 1 f32. "
             "Every rank has to issue the same operations in the same order"});
  EXPECT_THAT(judge(evidence).ranks, ElementsAre(0, 1));
}

TEST(Causes, CountRanksOmittedBySharedMemoryMessage) {
  Evidence evidence =
      ended(3, 0,
            {"error: all_reduce #12 of group world: rank 0 issues all_reduce of 64 f32 (average), rank "
             "1 issues all_reduce of 7 f32 (sum)."});
  evidence.ranks[0].operation = "all_reduce #12 of group world, 64 f32, failed";
  evidence.ranks[1].operation = "all_reduce #12 of group world, 7 f32, failed";
  evidence.ranks[2].operation = "all_reduce #12 of group world, 64 f32, failed";
  EXPECT_EQ(judge(evidence).cause, "mismatched operations");
  EXPECT_THAT(judge(evidence).ranks, ElementsAre(1));
}

TEST(Causes, AreCoresOnlyWhereRankIsStarved) {
  Evidence evidence = world();
  evidence.ranks[1].waits_for_core = 0.6;
  evidence.ranks[1].busy = 0.4;
  EXPECT_EQ(judge(evidence).cause, "never entered") << "it runs";
  EXPECT_THAT(paragraph(judge(evidence)), HasSubstr("It computes"));
  evidence.ranks[1].busy = 0.01;
  EXPECT_EQ(judge(evidence).cause, "no cores");
}

// Comparing each rank with each other one would take an hour.
TEST(Causes, AreFoundInAVeryLargeWorld) {
  constexpr int kRanks = 200'000;
  Evidence told = world(kRanks);
  EXPECT_THAT(judge(told).ranks, ElementsAre(1));
  Evidence guessed = told;
  for (RankEvidence& rank : guessed.ranks) rank.waits_for.clear();
  EXPECT_EQ(judge(guessed).cause, "never entered");
  EXPECT_THAT(judge(guessed).ranks, ElementsAre(1));
  for (RankEvidence& rank : guessed.ranks)
    rank.operation = text("recv #1 of group pp", rank.rank, ", running");
  EXPECT_EQ(judge(guessed).cause, "deadlock");
  const std::string disagreement =
      "error: the ranks disagree: rank 0, 2 issued all_reduce of 64 f32; rank 1 issued barrier";
  Evidence mismatched = ended(3, 0, {disagreement});
  mismatched.ranks.resize(kRanks, mismatched.ranks[2]);
  for (int rank = 3; rank < kRanks; ++rank) mismatched.ranks[static_cast<std::size_t>(rank)].rank = rank;
  EXPECT_EQ(judge(mismatched).cause, "mismatched operations");
  EXPECT_THAT(judge(mismatched).ranks, ElementsAre(1));
}

TEST(Operations, AreReadFromTheirText) {
  const std::string words = "all_reduce #12 of group world, 64 f32, running; waits for ranks 1,3";
  EXPECT_EQ(operation_number(words), 12U);
  EXPECT_EQ(operation_group(words), "world");
  EXPECT_EQ(operation_group("barrier #3 of group tp; waits for ranks 1"), "tp");
  EXPECT_TRUE(is_open(words));
  EXPECT_THAT(ranks_waited_for(words), ElementsAre(1, 3));
  EXPECT_EQ(without_waits(words), "all_reduce #12 of group world, 64 f32, running");
  EXPECT_EQ(operation_number(""), 0U);
  EXPECT_EQ(operation_group("send"), "");
  EXPECT_FALSE(is_open("send"));
}

TEST(Causes, SignalWithoutOtherSenderIsReason) {
  const std::vector<std::pair<int, std::string>> reasons = {{SIGXCPU, "limit of processor time"},
                                                            {SIGXFSZ, "limit of file sizes"},
                                                            {SIGPIPE, "no reader"},
                                                            {SIGALRM, "a timer of its own"},
                                                            {SIGPROF, "a timer of its own"},
                                                            {SIGVTALRM, "a timer of its own"},
                                                            {SIGIO, "no handler"}};
  for (const auto& [signal, words] : reasons) {
    const Verdict verdict = judge(ended(0, signal));
    EXPECT_EQ(verdict.cause, "killed");
    EXPECT_THAT(verdict.summary, AllOf(HasSubstr(words), Not(HasSubstr("another process"))));
    EXPECT_THAT(verdict.advice, Not(HasSubstr("scheduler")));
  }
  EXPECT_THAT(judge(ended(0, SIGUSR1)).summary, HasSubstr("sent by another process"));
}

TEST(Exceptions, NameTheComponentThatThrew) {
  const auto summary_of = [](int code, int signal, std::vector<std::string> lines) {
    return judge(ended(code, signal, lines)).summary;
  };
  EXPECT_THAT(summary_of(0, SIGABRT,
                         {"terminate called after throwing an instance of 'std::out_of_range'",
                          "  what():  vector::at"}),
              HasSubstr("of the program (std::out_of_range, not caught)"));
  EXPECT_THAT(summary_of(0, SIGABRT, {"terminate called after throwing an instance of 'c10::Error'"}),
              HasSubstr("of libtorch"));
  EXPECT_THAT(summary_of(4, 0, {"trireme: error: sample 3: the text ends early"}),
              HasSubstr("of the data set"));
  EXPECT_THAT(summary_of(2, 0, {"trireme: error: step 2, stage 0, the forward of micro-batch 0: bad shape"}),
              HasSubstr("of the model"));
  EXPECT_THAT(summary_of(5, 0, {"trireme: error: step 2: the loss is nan"}), HasSubstr("no finite number"));
}

TEST(Exceptions, MissedPeerIsNoCause) {
  Evidence evidence = ended(0, SIGABRT,
                            {"terminate called after throwing an instance of 'trireme::CommError'",
                             "  what():  all_reduce #12 of group world: rank 0 (pid 100) is stopped"});
  evidence.ranks[0].state = "T";
  EXPECT_EQ(judge(evidence).cause, "stopped");
  EXPECT_THAT(judge(evidence).ranks, ElementsAre(0));
}

TEST(Disk, ThreadForOtherRanksIsNoCause) {
  Evidence evidence = world();
  evidence.ranks[1].blocked = {thread("read", "file", "/data/x")};
  evidence.ranks[1].blocked[0].name = "trireme-store";
  EXPECT_EQ(judge(evidence).cause, "never entered");
  evidence.ranks[1].blocked[0].name = "trireme-torch";  // the main thread, named like the program
  evidence.ranks[1].blocked[0].first = true;
  EXPECT_EQ(judge(evidence).cause, "disk");
}

TEST(Paragraph, HasNoControlCharacters) {
  Evidence evidence = ended(70, 0, {"trireme: error: \x1b[31mred\x07"});
  evidence.ranks[1].action = "\x1b]0;title\x07";
  const std::string words = paragraph(judge(evidence));
  EXPECT_EQ(words.find('\x1b'), std::string::npos) << words;
}

TEST(Verdict, RankWithoutSharedMemoryIsTheCause) {
  const std::string message =
      "cannot reserve 4.0 MiB (4194304 bytes) of shared memory: only 1.8 MiB are available; free memory";
  for (const std::string before : {"", "group world: rank 1: "}) {
    Evidence evidence = ended(3, 0, {"trireme: error: " + before + message});
    if (!before.empty()) evidence.ranks[0].last_lines = evidence.ranks[1].last_lines;
    const Verdict verdict = judge(evidence);
    EXPECT_EQ(verdict.cause, "exception");
    EXPECT_THAT(verdict.ranks, ElementsAre(1));
    EXPECT_THAT(paragraph(verdict), HasSubstr(message));
  }
}

}  // namespace
}  // namespace trireme::autopsy
