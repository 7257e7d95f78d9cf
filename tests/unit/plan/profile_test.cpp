#include "trireme/plan/profile.h"

#include <gmock/gmock.h>

#include <limits>

#include "trireme/base/error.h"
#include "trireme/base/files.h"

namespace trireme::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::string kHeader =
    "state,antichain,cum_compute_s,cum_activation_bytes,cum_parameter_bytes,output_activation_bytes,"
    "predecessor_states\n";

TEST(Profile, ChainAddsUpItsLayers) {
  const std::vector<Layer> layers = {
      {.name = "a",
       .forward_s = 1,
       .backward_s = 2,
       .activation_bytes = 10,
       .parameter_bytes = 4,
       .output_bytes = 7},
      {.name = "b", .forward_s = 0.5, .backward_s = 0.25, .activation_bytes = 20, .parameter_bytes = 8},
  };
  const Profile profile(layers);
  EXPECT_EQ(profile.num_layers(), 2u);
  const Work model = profile.between(0, 2);
  EXPECT_DOUBLE_EQ(model.compute_s, 3.75);
  EXPECT_DOUBLE_EQ(model.activation_bytes, 30);
  EXPECT_DOUBLE_EQ(model.parameter_bytes, 12);
  EXPECT_DOUBLE_EQ(profile.between(1, 2).compute_s, 0.75);
  EXPECT_DOUBLE_EQ(profile.output_bytes(1), 7);
  EXPECT_DOUBLE_EQ(profile.output_bytes(2), 0);
}

TEST(Profile, ChainRejectsFiguresThatAreNoCost) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double bad : {-1.0, nan, std::numeric_limits<double>::infinity()}) {
    const std::vector<Layer> layers = {{.name = "a"}, {.name = "conv", .backward_s = bad}};
    EXPECT_THAT([&] { Profile(std::span(layers)); },
                ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("layer 1 (conv): backward_s is "),
                                                     HasSubstr("expected a finite number, 0 or more"))));
  }
  EXPECT_THAT([] { Profile(std::span<const Layer>()); },
              ThrowsMessage<InvalidArgument>(HasSubstr("at least one layer")));
}

/// Two branches of one layer each between a and d. After a, either of them may run first.
const std::string kDiamond = kHeader +
                             "0,a,1,10,1,5,\n"
                             "1,b|a,3,20,2,6,0\n"
                             "2,a|c,4,30,3,7,0\n"
                             "3,b|c,6,40,4,8,1 2\n"
                             "4,d,7,50,5,9,3\n";

TEST(ProfileCsv, FindsDependenciesAcrossEachCut) {
  const Profile profile = parse_profile(kDiamond);
  EXPECT_EQ(profile.num_states(), 5u);
  EXPECT_EQ(profile.num_layers(), 4u);
  EXPECT_TRUE(profile.is_before(0, 5));
  EXPECT_TRUE(profile.is_before(2, 5)) << "through state 3, its only direct successor";
  EXPECT_FALSE(profile.is_before(2, 3)) << "two branches";
  EXPECT_FALSE(profile.is_before(3, 2));
  EXPECT_DOUBLE_EQ(profile.between(3, 5).compute_s, 3);
  EXPECT_EQ(profile.between(3, 5).num_layers, 2u);
  EXPECT_EQ(profile.states()[1].name, "b|a");
}

TEST(ProfileCsv, RoundTripsEveryFigure) {
  const Profile profile(std::vector<Layer>{{.name = "a",
                                            .forward_s = 0.1,
                                            .backward_s = 1.0 / 3,
                                            .activation_bytes = 3e9,
                                            .parameter_bytes = 1,
                                            .output_bytes = 7},
                                           {.name = "b", .forward_s = 1e-7, .backward_s = 2e-7}});
  const Profile read = parse_profile(to_csv(profile));
  ASSERT_EQ(read.num_states(), profile.num_states());
  for (std::size_t i = 0; i < read.num_states(); ++i) {
    const State &found = read.states()[i], &expected = profile.states()[i];
    EXPECT_EQ(found.name, expected.name);
    EXPECT_EQ(found.compute_s, expected.compute_s);
    EXPECT_EQ(found.activation_bytes, expected.activation_bytes);
    EXPECT_EQ(found.parameter_bytes, expected.parameter_bytes);
    EXPECT_EQ(found.output_bytes, expected.output_bytes);
    EXPECT_EQ(found.predecessors, expected.predecessors);
  }
}

TEST(ProfileCsv, TakesLineEndsOfWindows) {
  std::string csv = kDiamond;
  for (std::size_t at = 0; (at = csv.find('\n', at)) != std::string::npos; at += 2) csv.insert(at, "\r");
  EXPECT_EQ(parse_profile(csv).num_layers(), 4u);
}

TEST(ProfileCsv, FileErrorBeginsWithThePath) {
  EXPECT_THAT([] { read_profile("/nowhere/profile.csv"); },
              ThrowsMessage<DataError>(HasSubstr("/nowhere/profile.csv")));
  const std::string path = testing::TempDir() + "trireme_bad_profile.csv";
  write_file_atomic(path, kHeader);
  EXPECT_THAT([&] { read_profile(path); },
              ThrowsMessage<DataError>(HasSubstr(path + ": line 2: found the end")));
  std::filesystem::remove(path);
}

TEST(SecurityProfileCsv, RejectsFileBeyondItsLimit) {
  const std::string path = testing::TempDir() + "trireme_large_profile.csv";
  write_file_atomic(path, kHeader);
  std::filesystem::resize_file(path, (std::uint64_t{64} << 20) + 1);
  EXPECT_THAT([&] { read_profile(path); },
              ThrowsMessage<DataError>(HasSubstr("is not a profile: it has more than 67108864 bytes")));
  std::filesystem::remove(path);
}

struct BadCsv {
  const char* name;
  std::string csv;
  const char* message;
};

class BadProfile : public testing::TestWithParam<BadCsv> {};

TEST_P(BadProfile, IsRejectedWithLineAndColumn) {
  EXPECT_THAT([] { parse_profile(GetParam().csv); }, ThrowsMessage<DataError>(HasSubstr(GetParam().message)));
}

const std::string kFirst = kHeader + "0,a,1,10,1,5,\n";

INSTANTIATE_TEST_SUITE_P(
    ProfileCsv, BadProfile,
    testing::Values(
        BadCsv{"Empty", "", "line 1: found '', expected the header state,antichain,"},
        BadCsv{"Header", "state,name\n", "line 1: found 'state,name', expected the header"},
        BadCsv{"NoStates", kHeader, "line 2: found the end, expected the first state"},
        BadCsv{"Columns", kFirst + "1,b,2,20,2\n", "line 3: found 5 column(s), expected 7: state,antichain"},
        BadCsv{"EmptyLine", kFirst + "\n1,b,2,20,2,5,0\n", "line 3: found 1 column(s), expected 7"},
        BadCsv{"Gap", kFirst + "2,b,2,20,2,5,0\n",
               "line 3, column state: found 2, expected 1, as states are numbered from 0"},
        BadCsv{"Text", kFirst + "1,b,2,2O,2,5,0\n",
               "line 3, column cum_activation_bytes: found '2O', expected a number"},
        BadCsv{"Negative", kHeader + "0,a,-1,10,1,5,\n",
               "line 2, column cum_compute_s: found -1, expected a finite number, 0 or more"},
        BadCsv{"NaN", kFirst + "1,b,nan,20,2,5,0\n",
               "line 3, column cum_compute_s: found nan, expected a finite number, 0 or more"},
        BadCsv{"Infinite", kFirst + "1,b,2,20,2,inf,0\n",
               "line 3, column output_activation_bytes: found inf, expected a finite number"},
        BadCsv{"Cycle", kHeader + "0,a,1,10,1,5,1\n1,b,2,20,2,5,0\n",
               "line 2, column predecessor_states: found 1, expected none, as no state precedes the first "
               "(a cycle has no such order)"},
        BadCsv{"OwnPredecessor", kFirst + "1,b,2,20,2,5,1\n",
               "line 3, column predecessor_states: found 1, expected states 0 to 0"},
        BadCsv{
            "PredecessorText", kFirst + "1,b,2,20,2,5,0;0\n",
            "line 3, column predecessor_states: found '0;0', expected numbers of states, separated by one"},
        BadCsv{"Decreasing", kFirst + "1,b,2,20,0.5,5,0\n",
               "line 3, column cum_parameter_bytes: found 0.5, expected at least 1, which its predecessor 0"},
        BadCsv{
            "TwoEnds", kFirst + "1,b,2,20,2,5,0\n2,c,2,20,2,5,0\n",
            "line 4, column predecessor_states: found no way from state 1, expected one from every state"}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace trireme::plan
