"""The verbs and their conjugation."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Verb:
    """A verb: English base, third person, past, participle, -ing; French stems; classes of its subjects and objects."""

    english: tuple[str, str, str, str, str]
    infinitive: str
    present: tuple[str, str, str, str, str]  # je, il, nous, vous, ils
    participle: str
    future: str  # the stem, as that of the imperfect
    imperfect: str
    subject: frozenset[str] = frozenset()
    object: frozenset[str] = frozenset()
    lasting: bool = False  # the English past progressive is usual: "was reading"
    state: bool = False  # the English past is an imperfect: loved, aimait
    etre: bool = False  # the compound past is made with être


def _verb(english: str, infinitive: str, irregular: str = "", *, subject: str = "person", object_: str = "", lasting: bool = False,
          state: bool = False, etre: bool = False) -> Verb:  # fmt: skip
    """English principal parts; French regular -er unless `irregular` gives ``present;participle;future;imperfect``."""
    base, third, past, participle, ing = (part.replace("_", " ") for part in english.split("/"))
    if irregular:
        present, done, future, imperfect = irregular.split(";")
        je, il, nous, vous, ils = present.split()
    else:
        stem = infinitive[:-2]
        soft = stem + "e" if stem.endswith("g") else stem
        je, il, nous, vous, ils = stem + "e", stem + "e", soft + "ons", stem + "ez", stem + "ent"
        done, future, imperfect = stem + "é", infinitive, soft
    return Verb((base, third, past, participle, ing), infinitive, (je, il, nous, vous, ils), done, future, imperfect,
                frozenset(subject.split(",")), frozenset(object_.split(",")), lasting, state, etre)  # fmt: skip


ANYONE = "person,animal"
TRANSITIVE = (
    _verb("see/sees/saw/seen/seeing", "voir", "vois voit voyons voyez voient;vu;verr;voy", subject=ANYONE, object_="person,animal,building,vehicle,plant"),
    _verb("watch/watches/watched/watched/watching", "regarder", subject=ANYONE, object_="animal,child,catch", lasting=True),
    _verb("look_at/looks_at/looked_at/looked_at/looking_at", "regarder", object_="building,plant,clothes,hide", lasting=True),
    _verb("look_for/looks_for/looked_for/looked_for/looking_for", "chercher", subject=ANYONE, object_="keep,animal,child,worker", lasting=True),
    _verb("find/finds/found/found/finding", "trouver", subject=ANYONE, object_="keep,animal"),
    _verb("love/loves/loved/loved/loving", "aimer", object_="family,animal,text,stage,home", state=True),
    _verb("buy/buys/bought/bought/buying", "acheter", "achète achète achetons achetez achètent;acheté;achèter;achet", object_="buy"),
    _verb("sell/sells/sold/sold/selling", "vendre", "vends vend vendons vendez vendent;vendu;vendr;vend", object_="buy", lasting=True),
    _verb("carry/carries/carried/carried/carrying", "porter", object_="carry", lasting=True),
    _verb("wear/wears/wore/worn/wearing", "porter", object_="clothes", lasting=True),
    _verb("paint/paints/painted/painted/painting", "peindre", "peins peint peignons peignez peignent;peint;peindr;peign", object_="paint", lasting=True),
    _verb("lose/loses/lost/lost/losing", "perdre", "perds perd perdons perdez perdent;perdu;perdr;perd", object_="keep"),
    _verb("hide/hides/hid/hidden/hiding", "cacher", object_="keep,hide"),
    _verb("clean/cleans/cleaned/cleaned/cleaning", "nettoyer", "nettoie nettoie nettoyons nettoyez nettoient;nettoyé;nettoier;nettoy", object_="wash", lasting=True),
    _verb("break/breaks/broke/broken/breaking", "casser", object_="break"),
    _verb("open/opens/opened/opened/opening", "ouvrir", "ouvre ouvre ouvrons ouvrez ouvrent;ouvert;ouvrir;ouvr", object_="open"),
    _verb("close/closes/closed/closed/closing", "fermer", object_="open"),
    _verb("eat/eats/ate/eaten/eating", "manger", object_="food", lasting=True),
    _verb("cut/cuts/cut/cut/cutting", "couper", object_="food", lasting=True),
    _verb("read/reads/read/read/reading", "lire", "lis lit lisons lisez lisent;lu;lir;lis", object_="text", lasting=True),
    _verb("write/writes/wrote/written/writing", "écrire", "écris écrit écrivons écrivez écrivent;écrit;écrir;écriv", object_="writing", lasting=True),
    _verb("forget/forgets/forgot/forgotten/forgetting", "oublier", object_="keep"),
    _verb("visit/visits/visited/visited/visiting", "visiter", object_="building,home", lasting=True),
    _verb("leave/leaves/left/left/leaving", "quitter", object_="building,home"),
    _verb("build/builds/built/built/building", "construire", "construis construit construisons construisez construisent;construit;construir;construis", object_="building", lasting=True),
    _verb("drive/drives/drove/driven/driving", "conduire", "conduis conduit conduisons conduisez conduisent;conduit;conduir;conduis", object_="drive", lasting=True),
    _verb("call/calls/called/called/calling", "appeler", "appelle appelle appelons appelez appellent;appelé;appeller;appel", object_="person"),
    _verb("help/helps/helped/helped/helping", "aider", object_="person", lasting=True),
    _verb("thank/thanks/thanked/thanked/thanking", "remercier", object_="person"),
    _verb("meet/meets/met/met/meeting", "rencontrer", object_="person"),
    _verb("follow/follows/followed/followed/following", "suivre", "suis suit suivons suivez suivent;suivi;suivr;suiv", subject=ANYONE, object_="person,animal,drive", lasting=True),
    _verb("wait_for/waits_for/waited_for/waited_for/waiting_for", "attendre", "attends attend attendons attendez attendent;attendu;attendr;attend", object_="person,catch", lasting=True),
)  # fmt: skip

DATIVE = (
    _verb("give/gives/gave/given/giving", "donner", object_="keep,food"),
    _verb("show/shows/showed/shown/showing", "montrer", object_="keep,hide,clothes", lasting=True),
    _verb("send/sends/sent/sent/sending", "envoyer", "envoie envoie envoyons envoyez envoient;envoyé;enverr;envoy", object_="text,hide"),
    _verb("lend/lends/lent/lent/lending", "prêter", object_="keep,clothes,drive"),
)  # fmt: skip

INTRANSITIVE = (  # and the places where it is done
    _verb("sleep/sleeps/slept/slept/sleeping", "dormir", "dors dort dormons dormez dorment;dormi;dormir;dorm", subject=ANYONE, object_="home,room,walk", lasting=True),
    _verb("work/works/worked/worked/working", "travailler", object_="work", lasting=True),
    _verb("sing/sings/sang/sung/singing", "chanter", object_="stage,walk", lasting=True),
    _verb("dance/dances/danced/danced/dancing", "danser", object_="stage", lasting=True),
    _verb("wait/waits/waited/waited/waiting", "attendre", "attends attend attendons attendez attendent;attendu;attendr;attend", object_="wait", lasting=True),
    _verb("run/runs/ran/run/running", "courir", "cours court courons courez courent;couru;courr;cour", subject=ANYONE, object_="walk", lasting=True),
    _verb("walk/walks/walked/walked/walking", "marcher", subject=ANYONE, object_="walk", lasting=True),
    _verb("swim/swims/swam/swum/swimming", "nager", subject=ANYONE, object_="water", lasting=True),
    _verb("live/lives/lived/lived/living", "habiter", object_="home", state=True),
)  # fmt: skip

MOTION = (  # with a place: "to the market"; "to" or "at" in English
    _verb("go/goes/went/gone/going", "aller", "vais va allons allez vont;allé;ir;all", subject=ANYONE, etre=True),
    _verb("come/comes/came/come/coming", "venir", "viens vient venons venez viennent;venu;viendr;ven", subject=ANYONE, etre=True),
    _verb("return/returns/returned/returned/returning", "retourner", subject=ANYONE, etre=True),
    _verb("arrive/arrives/arrived/arrived/arriving", "arriver", etre=True),
    _verb("stay/stays/stayed/stayed/staying", "rester", etre=True),
)  # fmt: skip
MODAL = (  # before an infinitive; English forms: base, third person, past
    _verb("want_to/wants_to/wanted_to/wanted_to/wanting_to", "vouloir", "veux veut voulons voulez veulent;voulu;voudr;voul", state=True),
    _verb("can/can/could/could/being_able", "pouvoir", "peux peut pouvons pouvez peuvent;pu;pourr;pouv", state=True),
    _verb("must/must/must/must/having_to", "devoir", "dois doit devons devez doivent;dû;devr;dev", state=True),
)  # fmt: skip

PLAY = _verb("play/plays/played/played/playing", "jouer", lasting=True)
KNOW_PERSON = _verb(
    "know/knows/knew/known/knowing",
    "connaître",
    "connais connaît connaissons connaissez connaissent;connu;connaîtr;connaiss",
    state=True,
)
KNOW_FACT = _verb("know/knows/knew/known/knowing", "savoir", "sais sait savons savez savent;su;saur;sav", state=True)
MISS_TRAIN = _verb("miss/misses/missed/missed/missing", "rater", object_="catch")
MISS_PERSON = _verb("miss/misses/missed/missed/missing", "manquer", object_="family", state=True)
DRINK = _verb(
    "drink/drinks/drank/drunk/drinking",
    "boire",
    "bois boit buvons buvez boivent;bu;boir;buv",
    subject=ANYONE,
    lasting=True,
)
EAT = next(verb for verb in TRANSITIVE if verb.infinitive == "manger")
HAVE = _verb("have/has/had/had/having", "avoir", "ai a avons avez ont;eu;aur;av", state=True)
BE = _verb("be/is/was/been/being", "être", "suis est sommes êtes sont;été;ser;ét", state=True)
