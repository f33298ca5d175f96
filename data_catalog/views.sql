-- What people ask, by name: `rstar2 catalog sql "from hardest_problems limit 10"`.

create view hardest_problems as
    select s.run, s.problem_id, sum(s.num_correct) / nullif(sum(s.num_decided), 0) as pass_rate,
        sum(s.num_correct) as num_correct, sum(s.num_decided) as num_decided,
        any_value(p.source) as source, any_value(p.question) as question, any_value(p.answer) as answer
    from problem_stage as s left join problems as p using (run, problem_id)
    group by s.run, s.problem_id
    having sum(s.num_decided) > 0
    order by pass_rate, num_decided desc, s.problem_id;
comment on view hardest_problems is 'Problems by pass rate over all their training and filter attempts.';

create view sources_by_stage as
    select s.run, s.stage, coalesce(p.source, '(unknown)') as source, count(*) as num_problems,
        count(*) filter (s.decision = 'trained') as num_trained,
        count(*) filter (s.decision in ('filtered', 'dropped')) as num_left_out,
        sum(s.num_correct) / nullif(sum(s.num_decided), 0) as pass_rate
    from problem_stage as s left join problems as p using (run, problem_id)
    group by all order by all;
comment on view sources_by_stage is 'What each source gave to each stage.';

create view filter_reasons as
    select run, stage, decision, reason, count(*) as num_problems
    from problem_stage group by all order by run, stage, num_problems desc, decision, reason;
comment on view filter_reasons is 'Which problems were filtered in which stage and why, counted.';

create view tool_errors_by_problem as
    select a.run, a.problem_id, count(*) as num_attempts, sum(a.num_tool_calls) as num_tool_calls,
        sum(a.num_tool_errors) as num_tool_errors,
        sum(a.num_tool_errors) / nullif(sum(a.num_tool_calls), 0) as tool_error_rate,
        any_value(p.source) as source, any_value(p.question) as question
    from attempts as a left join problems as p using (run, problem_id)
    group by a.run, a.problem_id having sum(a.num_tool_calls) > 0
    order by num_tool_errors desc, a.problem_id;
comment on view tool_errors_by_problem is 'Where the policy''s code fails.';

create view trained_on as
    select s.run, s.stage, s.problem_id, d.first_step, d.last_step, s.num_trained, s.pass_rate,
        coalesce(f.reason, 'in the set; no filter before') as why, p.source, p.question
    from problem_stage as s
        join (
            select run, stage, problem_id, min(step) as first_step, max(step) as last_step
            from draws where outcome = 'trained' group by all
        ) as d using (run, stage, problem_id)
        join stages as t using (run, stage)
        left join lateral (
            select arg_max(v.reason, e.position) as reason
            from filter_verdicts as v join stages as e on e.run = v.run and e.stage = v.stage
            where v.run = s.run and v.problem_id = s.problem_id and v.decision = 'kept'
                and e.position < t.position
        ) as f on true
        left join problems as p using (run, problem_id)
    order by s.run, t.position, s.problem_id;
comment on view trained_on is
    'What each stage trained on and why: where stage = ''rl-3'' gives the hard subset.';

create view gate_history as
    select run, stage, step, verdict, reason, is_final, evidence
    from gates order by run, created_at, is_final;
comment on view gate_history is 'Every decision of every gate, in order.';

create view flipped_problems as
    with tries as (
        select a.run, a.evaluation, a.problem_id, e.checkpoint, e.created_at, avg(a.reward) as pass_rate
        from attempts as a join (
            select distinct manifest_id, checkpoint, created_at from evaluations
        ) as e using (manifest_id)
        where a.reward is not null group by all
    ),
    pairs as (
        select *, lag(pass_rate) over later as pass_rate_before,
            lag(evaluation) over later as evaluation_before,
            lag(checkpoint) over later as checkpoint_before
        from tries window later as (partition by run, problem_id order by created_at)
    )
    select run, problem_id, evaluation_before, evaluation, checkpoint_before, checkpoint,
        pass_rate_before, pass_rate
    from pairs
    where pass_rate_before >= 0.5 and pass_rate < 0.5 and checkpoint <> checkpoint_before
    order by run, created_at, problem_id;
comment on view flipped_problems is
    'Problems solved in one evaluation and unsolved in the next one of another checkpoint.';

create view results as
    select run, stage, evaluation, name, mean, low, high, num_problems, checkpoint
    from evaluations order by run, created_at, name;
comment on view results is 'Every score with its interval, in order.';

create macro trained_problems(checkpoint_uri) as table
    with recursive ancestors as (
        select checkpoint_uri as uri
        union
        select l.parent from lineage as l join ancestors as a on l.child = a.uri
        where l.relation in ('trained on', 'continued from')
    ),
    batches as (
        select distinct run, stage, step from artefacts join ancestors using (uri) where name = 'batch'
    )
    select d.run, d.stage, d.problem_id, min(d.step) as first_step, max(d.step) as last_step,
        count(*) as num_trained
    from draws as d join batches as b using (run, stage, step)
    where d.outcome = 'trained' group by all order by all;
