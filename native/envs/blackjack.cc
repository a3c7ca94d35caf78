// Blackjack (Sutton and Barto, example 5.1): Gymnasium's Blackjack-v1.
//
// Cards come from an infinite deck; 1 is the ace, and 10 stands for the faces too.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "envfleet/env.h"

namespace {

using envfleet::Config;
using envfleet::Out;
using envfleet::Rng;
using envfleet::Spec;

using Hand = std::vector<std::int8_t>;

std::int8_t draw_card(Rng& rng) { return static_cast<std::int8_t>(std::min<std::int64_t>(rng.integers(0, 13) + 1, 10)); }

struct Value {
  int sum;
  bool usable_ace;  // an ace that counts as 11

  int score() const { return sum > 21 ? 0 : sum; }
};

Value value_of(const Hand& hand) {
  const int sum = std::accumulate(hand.begin(), hand.end(), 0);
  const bool usable_ace = sum + 10 <= 21 && std::find(hand.begin(), hand.end(), 1) != hand.end();
  return {usable_ace ? sum + 10 : sum, usable_ace};
}

bool is_natural(const Hand& hand) { return hand.size() == 2 && value_of(hand).sum == 21; }

class Blackjack {
 public:
  static constexpr bool writes_every_element = true;

  static envfleet::Params params() {
    // sab: Gymnasium's class has it off, but its registration of Blackjack-v1 turns it on.
    return {{"natural", false, "a win with an ace and a ten at the start pays 1.5; ignored where sab is set"},
            {"sab", true, "the rules of Sutton and Barto: a natural wins unless the dealer has one too"}};
  }

  static void spec(const Config&, Spec& spec) {
    spec.observation_member(envfleet::discrete(32));  // the player's sum
    spec.observation_member(envfleet::discrete(11));  // the dealer's open card
    spec.observation_member(envfleet::discrete(2));   // has the player a usable ace
    spec.action(envfleet::discrete(2));
  }

  explicit Blackjack(const Config& config) : natural_(config.flag("natural")), sab_(config.flag("sab")) {}

  void reset(Rng& rng, Out& out) {
    dealer_.clear();
    player_.clear();
    for (Hand* hand : {&dealer_, &player_}) {
      for (int card = 0; card < 2; ++card) hand->push_back(draw_card(rng));
    }
    choose_face(rng);
    observe(out);
  }

  void step(int action, Rng& rng, Out& out) {
    if (action != 0) {
      player_.push_back(draw_card(rng));
      out.terminated = value_of(player_).sum > 21;
      out.reward = out.terminated ? -1.0 : 0.0;
    } else {
      while (value_of(dealer_).sum < 17) dealer_.push_back(draw_card(rng));
      out.terminated = true;
      out.reward = payout();
    }
    observe(out);
  }

  void observe(Out& out) {
    // A state set from outside may hold any hand.
    if (dealer_.empty()) [[unlikely]]
      throw std::out_of_range("Blackjack expected cards in the dealer's hand, got none");
    const Value value = value_of(player_);
    *out.obs<std::int64_t>(0) = value.sum;
    *out.obs<std::int64_t>(1) = dealer_[0];  // NOLINT(bugprone-signed-char-misuse): a number
    *out.obs<std::int64_t>(2) = value.usable_ace;
  }

  template <class Visitor>
  void fields(Visitor& visit) {
    visit("player", player_);
    visit("dealer", dealer_);
    visit("dealer_top_card_suit", dealer_top_card_suit_);
    visit("dealer_top_card_value_str", dealer_top_card_value_str_);
  }

 private:
  double payout() const {
    const int player = value_of(player_).score();
    const int dealer = value_of(dealer_).score();
    if (sab_ && is_natural(player_) && !is_natural(dealer_)) return 1.0;
    if (player > dealer) return !sab_ && natural_ && is_natural(player_) ? 1.5 : 1.0;
    return player < dealer ? -1.0 : 0.0;
  }

  // The picture of the dealer's open card. Nothing but a renderer sees it, but Gymnasium
  // draws it from the env's generator: without it every later card would differ.
  void choose_face(Rng& rng) {
    dealer_top_card_suit_ = static_cast<std::uint8_t>("CDHS"[rng.integers(0, 4)]);
    const std::int8_t card = dealer_[0];
    if (card == 10) {
      dealer_top_card_value_str_ = static_cast<std::uint8_t>("JQK"[rng.integers(0, 3)]);
    } else {
      dealer_top_card_value_str_ = static_cast<std::uint8_t>(card == 1 ? 'A' : '0' + card);
    }
  }

  Hand player_ = {0, 0};
  Hand dealer_ = {0, 0};
  std::uint8_t dealer_top_card_suit_ = 'C';       // as the code of its letter
  std::uint8_t dealer_top_card_value_str_ = 'A';  // likewise
  bool natural_;
  bool sab_;
};

}  // namespace

ENVFLEET_ENV("Blackjack-v1", Blackjack)
