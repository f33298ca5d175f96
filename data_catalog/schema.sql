-- The catalogue's tables: what the runs of one storage did. Times are UTC. Every row comes from a
-- committed manifest; the derived tables (stages, problem_stage, lineage) are computed from the rest.
-- A change here needs a higher SCHEMA_VERSION in catalog.py: older files are then rebuilt.

create table catalogue (schema_version integer);
comment on table catalogue is 'One row: the version of this schema.';
comment on column catalogue.schema_version is 'Raised with every change of the tables.';

create table manifests (
    manifest_id integer, key varchar, run varchar, stage varchar, kind varchar, step integer,
    created_at timestamp
);
comment on table manifests is 'The committed manifests that this catalogue contains.';
comment on column manifests.manifest_id is 'Number within this file; other tables refer to it.';
comment on column manifests.key is 'Identity over all runs, as in demo/rl-1/step/3.';
comment on column manifests.run is 'Name of the run.';
comment on column manifests.stage is 'Stage, or empty for the run itself.';
comment on column manifests.kind is 'What it says: run, problems, step, stage, filter, …';
comment on column manifests.step is '1-based within the stage, where it belongs to a step.';
comment on column manifests.created_at is 'When it was committed.';

create table runs (
    manifest_id integer, run varchar, profile varchar, config_hash varchar, config json,
    created_at timestamp
);
comment on table runs is 'One row for each run.';
comment on column runs.manifest_id is 'Where the row comes from.';
comment on column runs.run is 'Name of the run.';
comment on column runs.profile is 'Profile it was started with.';
comment on column runs.config_hash is 'Identity of what it computes.';
comment on column runs.config is 'Resolved configuration.';
comment on column runs.created_at is 'When it was first started.';

create table stages (
    run varchar, stage varchar, position integer, started_at timestamp, ended_at timestamp,
    num_problems integer, last_step integer, verdict varchar, reason varchar, checkpoint varchar,
    problem_set varchar
);
comment on table stages is 'One row for each stage of a run, SFT, filter and evaluation included.';
comment on column stages.run is 'Name of the run.';
comment on column stages.stage is 'sft, rl-1, rl-2, difficulty-filter, rl-3, evaluation.';
comment on column stages.position is '1-based order within the run.';
comment on column stages.started_at is 'Its first commit.';
comment on column stages.ended_at is 'Its result was committed; null while it runs.';
comment on column stages.num_problems is 'Problems in its set, quarantined ones left out.';
comment on column stages.last_step is 'Last committed step.';
comment on column stages.verdict is 'The decision that ended it: promote, hold or abort; a person''s answer counts.';
comment on column stages.reason is 'That decision in a sentence.';
comment on column stages.checkpoint is 'Address of its resulting checkpoint.';
comment on column stages.problem_set is 'Address of its problem set.';

create table steps (
    manifest_id integer, run varchar, stage varchar, step integer, created_at timestamp,
    num_problems integer, num_rollouts integer, num_failed integer, num_undecided integer,
    num_groups_trained integer, num_groups_without_signal integer, num_groups_too_small integer,
    is_thin boolean, reward double, truncation_rate double, turn_limit_rate double,
    solved_rate double, tool_error_rate double, tool_error_rate_positives double,
    format_penalty_positives double, first_call_success_rate double, valid_call_rate double,
    num_tool_calls integer, mean_response_tokens double, loss double, grad_norm double,
    clip_fraction double, behaviour_kl double, entropy double, num_skipped_updates integer,
    collect_seconds double, build_seconds double, train_seconds double, sync_seconds double,
    num_sampled_tokens bigint, evaluation_score double
);
comment on table steps is 'The step series: one row for each committed RL step. Rates are in [0, 1].';
comment on column steps.manifest_id is 'Where the row comes from.';
comment on column steps.run is 'Name of the run.';
comment on column steps.stage is 'Stage.';
comment on column steps.step is '1-based within the stage.';
comment on column steps.created_at is 'When it was committed.';
comment on column steps.num_problems is 'Problems drawn, refill rounds included.';
comment on column steps.num_rollouts is 'All rollouts sampled, before any is left out.';
comment on column steps.num_failed is 'Rollouts ended by an unavailable resource.';
comment on column steps.num_undecided is 'Rollouts whose answer could not be checked in time.';
comment on column steps.num_groups_trained is 'Groups in the batch.';
comment on column steps.num_groups_without_signal is 'Groups whose rewards were all equal.';
comment on column steps.num_groups_too_small is 'Groups with fewer than G decided rollouts.';
comment on column steps.is_thin is 'Fewer groups had signal than the stage asks for.';
comment on column steps.reward is 'Mean over decided rollouts.';
comment on column steps.truncation_rate is 'Share of all rollouts stopped by the length limit.';
comment on column steps.turn_limit_rate is 'Share of all rollouts stopped by the turn limit.';
comment on column steps.solved_rate is 'Share of problems drawn that all their rollouts solved.';
comment on column steps.tool_error_rate is 'Errors / calls over all rollouts.';
comment on column steps.tool_error_rate_positives is 'Errors / calls over correct rollouts.';
comment on column steps.format_penalty_positives is 'Mean p_format over correct rollouts.';
comment on column steps.first_call_success_rate is 'Correct rollouts with a call: first one ok.';
comment on column steps.valid_call_rate is 'Share of calls well formed and of a known tool.';
comment on column steps.num_tool_calls is 'Tool calls over all rollouts.';
comment on column steps.mean_response_tokens is 'Sampled and observation tokens of a rollout.';
comment on column steps.loss is 'Policy loss; null where nothing was trained.';
comment on column steps.grad_norm is 'Gradient norm before clipping.';
comment on column steps.clip_fraction is 'Share of sampled tokens whose ratio was clipped.';
comment on column steps.behaviour_kl is 'Behaviour minus policy logprob, mean, in nats.';
comment on column steps.entropy is 'Estimated entropy of the policy, in nats.';
comment on column steps.num_skipped_updates is 'Optimizer updates that were not applied.';
comment on column steps.collect_seconds is 'Wall time of sampling and grading.';
comment on column steps.build_seconds is 'Wall time of building the batch.';
comment on column steps.train_seconds is 'Wall time of the optimizer step.';
comment on column steps.sync_seconds is 'Wall time of moving weights to the pool.';
comment on column steps.num_sampled_tokens is 'Tokens sampled in the step.';
comment on column steps.evaluation_score is 'avg@k where the stage evaluates during training.';

create table problems (
    manifest_id integer, run varchar, problem_id varchar, question varchar, answer varchar,
    source varchar
);
comment on table problems is 'Every problem that a run knows, once for each run.';
comment on column problems.manifest_id is 'Where the row comes from.';
comment on column problems.run is 'Name of the run.';
comment on column problems.problem_id is 'Hash of the normalised question.';
comment on column problems.question is 'The question as the policy reads it.';
comment on column problems.answer is 'The gold answer.';
comment on column problems.source is 'Where it comes from, coarse to fine, as in user/singleop.';

create table problem_sets (
    manifest_id integer, run varchar, stage varchar, problem_id varchar, is_quarantined boolean,
    reason varchar, pass_rate double
);
comment on table problem_sets is 'Which problems a stage started with, and which it refused.';
comment on column problem_sets.manifest_id is 'Where the row comes from.';
comment on column problem_sets.run is 'Name of the run.';
comment on column problem_sets.stage is 'Stage.';
comment on column problem_sets.problem_id is 'The problem.';
comment on column problem_sets.is_quarantined is 'Refused on entry: never drawn.';
comment on column problem_sets.reason is 'Why it was refused.';
comment on column problem_sets.pass_rate is 'Correct / attempts that a filter or source measured.';

create table draws (
    manifest_id integer, run varchar, stage varchar, step integer, problem_id varchar,
    outcome varchar, reason varchar, num_attempts integer, num_decided integer, num_correct integer
);
comment on table draws is 'What became of each problem at each step that drew it.';
comment on column draws.manifest_id is 'Where the row comes from.';
comment on column draws.run is 'Name of the run.';
comment on column draws.stage is 'Stage.';
comment on column draws.step is '1-based within the stage.';
comment on column draws.problem_id is 'The problem.';
comment on column draws.outcome is 'trained, or dropped: its group is not in the batch.';
comment on column draws.reason is 'Why the group was dropped; null where it was trained.';
comment on column draws.num_attempts is 'Rollouts sampled.';
comment on column draws.num_decided is 'Rollouts with a reward.';
comment on column draws.num_correct is 'Rollouts with reward 1.';

create table pass_rates (
    manifest_id integer, run varchar, stage varchar, step integer, problem_id varchar,
    num_attempts integer, num_decided integer, num_correct integer,
    pass_rate double as (num_correct / nullif(num_decided, 0)),
    checkpoint varchar, temperature double, top_p double, max_response_tokens integer,
    max_turns integer, seed bigint, verifier varchar
);
comment on table pass_rates is 'What the difficulty filter measured, and under which conditions.';
comment on column pass_rates.manifest_id is 'Where the row comes from.';
comment on column pass_rates.run is 'Name of the run.';
comment on column pass_rates.stage is 'Name of the filter pass.';
comment on column pass_rates.step is '1-based number of the chunk it was sampled in.';
comment on column pass_rates.problem_id is 'The problem.';
comment on column pass_rates.num_attempts is 'Rollouts sampled.';
comment on column pass_rates.num_decided is 'Rollouts with a reward.';
comment on column pass_rates.num_correct is 'Rollouts with reward 1.';
comment on column pass_rates.pass_rate is 'Correct / decided, in [0, 1]; null where none was decided.';
comment on column pass_rates.checkpoint is 'Address of the policy that tried.';
comment on column pass_rates.temperature is 'Sampling temperature.';
comment on column pass_rates.top_p is 'Nucleus that was sampled from.';
comment on column pass_rates.max_response_tokens is 'Limit of sampled and observation tokens.';
comment on column pass_rates.max_turns is 'Limit of turns.';
comment on column pass_rates.seed is 'Seed of the run, from which that of each rollout follows.';
comment on column pass_rates.verifier is 'Grading rules and libraries that judged the answers.';

create table filter_verdicts (
    manifest_id integer, run varchar, stage varchar, problem_id varchar, decision varchar,
    is_undecided boolean, reason varchar, num_attempts integer, num_decided integer,
    num_correct integer, min_correct integer, max_correct integer, checkpoint varchar
);
comment on table filter_verdicts is 'What the difficulty filter decided, problem by problem.';
comment on column filter_verdicts.manifest_id is 'Where the row comes from.';
comment on column filter_verdicts.run is 'Name of the run.';
comment on column filter_verdicts.stage is 'Name of the filter pass.';
comment on column filter_verdicts.problem_id is 'The problem.';
comment on column filter_verdicts.decision is 'kept or filtered.';
comment on column filter_verdicts.is_undecided is
    'Kept since too few attempts were decided to tell its band; null in runs from before bands.';
comment on column filter_verdicts.reason is 'Why, with the numbers seen.';
comment on column filter_verdicts.num_attempts is 'Rollouts sampled.';
comment on column filter_verdicts.num_decided is 'Rollouts with a reward.';
comment on column filter_verdicts.num_correct is 'Rollouts with reward 1.';
comment on column filter_verdicts.min_correct is 'Fewest correct of the band that was applied.';
comment on column filter_verdicts.max_correct is 'Most correct of the band that was applied.';
comment on column filter_verdicts.checkpoint is 'Address of the policy that tried.';

create table problem_stage (
    run varchar, stage varchar, problem_id varchar, decision varchar, reason varchar,
    num_draws integer, num_trained integer, num_attempts integer, num_decided integer,
    num_correct integer, pass_rate double, checkpoint varchar
);
comment on table problem_stage is 'What became of each problem in each stage, and why.';
comment on column problem_stage.run is 'Name of the run.';
comment on column problem_stage.stage is 'Stage, the difficulty filter included.';
comment on column problem_stage.problem_id is 'The problem.';
comment on column problem_stage.decision is
    'trained (at least once), dropped (drawn, never trained), not drawn, quarantined, held out; of a filter: kept or filtered.';
comment on column problem_stage.reason is 'Why; of several drops the last one.';
comment on column problem_stage.num_draws is 'Steps that drew it.';
comment on column problem_stage.num_trained is 'Steps that trained on it.';
comment on column problem_stage.num_attempts is 'Rollouts sampled in the stage.';
comment on column problem_stage.num_decided is 'Rollouts with a reward.';
comment on column problem_stage.num_correct is 'Rollouts with reward 1.';
comment on column problem_stage.pass_rate is 'Correct / decided, in [0, 1].';
comment on column problem_stage.checkpoint is
    'Address of the policy that tried; null for RL stages, whose policy moves.';

create table attempts (
    manifest_id integer, run varchar, stage varchar, step integer, purpose varchar,
    evaluation varchar, problem_id varchar, rollout_id varchar, reward double, status varchar,
    answer varchar, verdict_reason varchar, num_turns integer, num_tool_calls integer,
    num_tool_errors integer, num_sampled_tokens integer, num_response_tokens integer,
    is_kept boolean, policy_version integer
);
comment on table attempts is 'Every rollout: one attempt at a problem.';
comment on column attempts.manifest_id is 'Where the row comes from.';
comment on column attempts.run is 'Name of the run.';
comment on column attempts.stage is 'Stage.';
comment on column attempts.step is '1-based within the stage; of a filter its chunk; else null.';
comment on column attempts.purpose is 'training, filter or evaluation.';
comment on column attempts.evaluation is 'Name of the evaluation; null elsewhere.';
comment on column attempts.problem_id is 'The problem.';
comment on column attempts.rollout_id is 'The rollout.';
comment on column attempts.reward is '1 or 0; null where undecided or failed.';
comment on column attempts.status is 'completed, truncated_length, truncated_turns or failed.';
comment on column attempts.answer is 'What was answered; null without an answer.';
comment on column attempts.verdict_reason is 'Why the answer was judged so.';
comment on column attempts.num_turns is 'Turns.';
comment on column attempts.num_tool_calls is 'Tool calls that were answered.';
comment on column attempts.num_tool_errors is 'Calls that ended error, timeout, malformed or unknown_tool.';
comment on column attempts.num_sampled_tokens is 'Tokens the policy sampled.';
comment on column attempts.num_response_tokens is 'Sampled and observation tokens.';
comment on column attempts.is_kept is 'RoC kept it: it is in the batch.';
comment on column attempts.policy_version is 'Newest weights that sampled a token of it.';

create table gates (
    manifest_id integer, run varchar, stage varchar, step integer, verdict varchar, reason varchar,
    evidence json, is_final boolean, created_at timestamp
);
comment on table gates is 'Every decision of a gate.';
comment on column gates.manifest_id is 'Where the row comes from.';
comment on column gates.run is 'Name of the run.';
comment on column gates.stage is 'Stage.';
comment on column gates.step is 'Step after which it was taken.';
comment on column gates.verdict is 'promote, continue, hold or abort.';
comment on column gates.reason is 'The decision in a sentence.';
comment on column gates.evidence is 'The numbers that were seen, by name.';
comment on column gates.is_final is 'It ended the stage.';
comment on column gates.created_at is 'When it was committed.';

create table checkpoints (
    manifest_id integer, run varchar, stage varchar, step integer, uri varchar, sha256 varchar,
    num_bytes bigint, is_stage_end boolean, created_at timestamp
);
comment on table checkpoints is 'Every checkpoint that was committed.';
comment on column checkpoints.manifest_id is 'Where the row comes from.';
comment on column checkpoints.run is 'Name of the run.';
comment on column checkpoints.stage is 'Stage that wrote it.';
comment on column checkpoints.step is 'Step after which it was written; 0: before training.';
comment on column checkpoints.uri is 'Address within the storage.';
comment on column checkpoints.sha256 is 'Hash over its files.';
comment on column checkpoints.num_bytes is 'Size of its files.';
comment on column checkpoints.is_stage_end is 'The result of its stage.';
comment on column checkpoints.created_at is 'When it was committed.';

create table artefacts (
    manifest_id integer, run varchar, stage varchar, step integer, kind varchar, name varchar,
    uri varchar, sha256 varchar, num_bytes bigint
);
comment on table artefacts is 'Every part that a manifest names.';
comment on column artefacts.manifest_id is 'Where the row comes from.';
comment on column artefacts.run is 'Name of the run.';
comment on column artefacts.stage is 'Stage.';
comment on column artefacts.step is 'Step, where it belongs to one.';
comment on column artefacts.kind is 'Kind of content.';
comment on column artefacts.name is 'Name of the part in its manifest.';
comment on column artefacts.uri is 'Address within the storage.';
comment on column artefacts.sha256 is 'Hash of its content.';
comment on column artefacts.num_bytes is 'Size.';

create table evaluations (
    manifest_id integer, run varchar, stage varchar, step integer, evaluation varchar, name varchar,
    checkpoint varchar, mean double, low double, high double, standard_error double,
    num_problems integer, num_attempts integer, num_undecided integer, mean_response_tokens double,
    truncation_rate double, created_at timestamp
);
comment on table evaluations is 'Every score: avg@k of one checkpoint on one set of problems.';
comment on column evaluations.manifest_id is 'Where the row comes from.';
comment on column evaluations.run is 'Name of the run.';
comment on column evaluations.stage is 'Stage.';
comment on column evaluations.step is 'Step, where it was taken during a stage.';
comment on column evaluations.evaluation is 'Name of the evaluation, which may hold several scores.';
comment on column evaluations.name is 'Set of problems.';
comment on column evaluations.checkpoint is 'Address of the policy.';
comment on column evaluations.mean is 'avg@k, in [0, 1].';
comment on column evaluations.low is 'Lower end of the clustered 95 % interval.';
comment on column evaluations.high is 'Upper end.';
comment on column evaluations.standard_error is 'Clustered by problem.';
comment on column evaluations.num_problems is 'Problems.';
comment on column evaluations.num_attempts is 'Rollouts sampled, undecided ones included.';
comment on column evaluations.num_undecided is 'Attempts that could not be checked in time.';
comment on column evaluations.mean_response_tokens is 'Sampled and observation tokens.';
comment on column evaluations.truncation_rate is 'Share stopped by the length limit.';
comment on column evaluations.created_at is 'When it was committed.';

create table lineage (run varchar, child varchar, parent varchar, relation varchar);
comment on table lineage is 'Which artefact was made from which.';
comment on column lineage.run is 'Name of the run.';
comment on column lineage.child is 'Address of the artefact that was made.';
comment on column lineage.parent is 'Address of what it was made from.';
comment on column lineage.relation is 'How, read from child to parent, as in trained on.';
